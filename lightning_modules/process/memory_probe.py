"""A few steps of a run, to see how much memory it takes: all that a run does, but briefly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from lightning_modules.data.streaming import workers_for
from sweeper.spec.config import RunConfig
from sweeper.spec.run_spec import RunSpec, run_spec

# Optimizer state is allocated at the first step and coexists with the activations at the second;
# PowerSGD's buffers are made at the third. The loss scaler may skip the first steps.
_LEAST_STEPS = 3
_STEPS_PER_EPOCH = {"16-mixed": 4}
_USUAL_STEPS_PER_EPOCH = 2
_LEAST_EPOCHS = 2
_ACCUMULATION_STEPS = 2  # at the second micro-batch the gradients of the first are there


def brief(config: RunConfig, micro_batch: int) -> RunSpec:
    """One rank's part of a run for a few steps, in micro-batches of a given size.

    It has all that takes memory: the data set, two or more epochs with their evaluation and
    checkpoint, accumulated gradients (whether or not this run accumulates: others of its kind may),
    the optimizer's state. The learning rate is zero, so that nothing diverges.
    """
    examples = config.data.num_train_examples
    batch = micro_batch * min(_ACCUMULATION_STEPS, examples // micro_batch)
    wanted = _STEPS_PER_EPOCH.get(config.precision, _USUAL_STEPS_PER_EPOCH)
    steps = min(wanted, examples // batch)
    resolved = config.resolved
    spec = run_spec(
        config.replaced(
            batch=batch,
            micro_batch=micro_batch,
            devices=1,
            num_nodes=1,
            epochs=max(_LEAST_EPOCHS, -(-_LEAST_STEPS // steps)),
            warmup=0,
            lr_rule={"name": "none"},
            schedule={"name": "constant"},
            logger={"_target_": None},
            loss_ceiling=None,
            data={**resolved["data"], **_loading_processes(config)},
            comm_hook=_from_the_start(resolved["comm_hook"]),
        )
    )
    short = replace(spec.batch_plan, num_train_examples=steps * batch)
    still = replace(spec.schedule, start_lr=0.0, peak_lr=0.0)
    return replace(spec, batch_plan=short, schedule=still)


def _loading_processes(config: RunConfig) -> dict[str, int]:
    """As many loading processes as each of the run's ranks has, if that is automatic."""
    if config.data.settings.get("num_workers") != "auto":
        return {}
    is_on_gpu = config.accelerator != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if is_on_gpu else "cpu")
    return {"num_workers": workers_for("auto", ranks_on_node=config.devices, device=device)}


def _from_the_start(comm_hook: Mapping[str, Any]) -> dict[str, Any]:
    """A communication hook on one rank, without the plain all-reduce that it begins with."""
    if comm_hook["name"] == "hierarchical":
        return {"name": "all_reduce", "nccl_algo": None}
    sooner = {"start_step": 2, "start_epoch": 1, "workers": 1}
    return {key: sooner.get(key, value) for key, value in comm_hook.items()}
