"""A run of a few steps on a CPU, as its memory trace trains it, and what would fail it at once."""

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch.distributed as dist

from lightning_modules.modules.item_findings import describe_error
from lightning_modules.process.world import has_exchange
from lightning_modules.train import RankContext, train
from sweeper.spec.config import RunConfig
from sweeper.spec.method_checks import gradient_span
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.worker_args import CHECKPOINT

# Optimizer state is allocated at the first step and coexists with the activations at the second;
# PowerSGD's buffers are made at the third. During a step's second micro-batch the gradients of the
# first are alive.
_STEPS, _STEPS_OF_POWERSGD, _ACCUMULATION_STEPS = 2, 3, 2
_LEAST_MICRO_BATCH = 4  # [examples]
_Found = TypeVar("_Found")
_Fit = Callable[[pl.Trainer, pl.LightningModule, dict[str, Any]], None]


class StepsByHand(Exception):
    """A module that takes its steps by itself was to accumulate gradients."""


def check_accumulation(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse to accumulate gradients for a module that takes its steps by itself.

    Raises:
        StepsByHand: if that was asked for.
    """
    if trainer.accumulate_grad_batches > 1 and not module.automatic_optimization:
        raise StepsByHand


def with_short_run(
    config: RunConfig, micro_batch: int, function: Callable[[RunSpec], _Found]
) -> _Found:
    """What a function finds for a run of a few steps, which accumulate gradients if they can.

    Args:
        config: of the run.
        micro_batch: to train it in [examples].
        function: called with the short run; it calls `check_accumulation` before it trains.
    """
    try:
        return function(short_spec(config, micro_batch))
    except StepsByHand:
        return function(short_spec(config, micro_batch, accumulation_steps=1))


def short_spec(
    config: RunConfig, micro_batch: int, *, accumulation_steps: int = _ACCUMULATION_STEPS
) -> RunSpec:
    """One rank's part of a run for a few steps, in micro-batches of a given size.

    It has all that takes memory: the data set, accumulated gradients (whether or not this run
    accumulates: others of its kind may), the optimizer's state. 16-mixed is traced as bf16-mixed,
    whose sizes are the same, since the loss scaler reads values.
    """
    examples = config.data.num_train_examples
    batch = micro_batch * min(accumulation_steps, examples // micro_batch)
    wanted = _STEPS_OF_POWERSGD if config.comm_hook.name == "powersgd" else _STEPS
    data: dict[str, Any] = dict(config.resolved["data"])
    comm_hook: dict[str, Any] = dict(config.resolved["comm_hook"])
    if "num_workers" in config.data.settings:
        data["num_workers"] = 0
    if comm_hook["name"] == "hierarchical":
        comm_hook = {"name": "all_reduce", "nccl_algo": None}
    for key, value in {"start_step": 2, "start_epoch": 1, "workers": 1}.items():
        if key in comm_hook:  # on a single rank, without the steps of plain all-reduce at the start
            comm_hook[key] = value
    spec = run_spec(
        config.with_changes(
            accelerator="cpu",
            precision={"16-mixed": "bf16-mixed"}.get(config.precision, config.precision),
            batch=batch,
            micro_batch=micro_batch,
            devices=1,
            num_nodes=1,
            epochs=1,
            warmup=0,
            lr_rule={"name": "none"},
            schedule={"name": "constant"},
            logger={"_target_": None},
            loss_ceiling=None,
            data=data,
            comm_hook=comm_hook,
        )
    )
    steps = min(wanted, examples // batch)
    return replace(spec, batch_plan=replace(spec.batch_plan, num_train_examples=steps * batch))


def least_micro_batch(bn_span: int) -> int:
    """The smallest micro-batch to try that is a multiple of the BatchNorm span [examples]."""
    return bn_span * -(-_LEAST_MICRO_BATCH // bn_span)


def train_short_run(spec: RunSpec, fit: _Fit) -> dict[str, Any]:
    """Train the only rank of a short run; its record.

    Args:
        spec: of the short run.
        fit: called before, or instead of, `Trainer.fit`.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = RankContext(
            rank=0,
            folder=Path(folder),
            checkpoint=Path(folder, CHECKPOINT),
            on_epoch=lambda rows: None,
            fit=fit,
        )
        return train(spec, context)


def find_error(config: RunConfig) -> str:
    """The error that a few steps and an evaluation end with; empty if they raise none."""
    if has_exchange(config.comm_hook, 1, reproducible=bool(config.reproducible)):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    span = config.bn_span if isinstance(config.bn_span, int) else 1
    least = min(least_micro_batch(span), config.data.num_train_examples)
    try:
        return with_short_run(config, gradient_span(config) or least, _find_failure)
    except Exception as error:  # noqa: BLE001  whatever the user's code raises
        traceback.print_exc()
        return describe_error(error)


def _find_failure(spec: RunSpec) -> str:
    def evaluate_a_batch(
        trainer: pl.Trainer, module: pl.LightningModule, loaders: dict[str, Any]
    ) -> None:
        del loaders
        check_accumulation(trainer, module)
        trainer.limit_val_batches = 1

    record = train_short_run(spec, evaluate_a_batch)
    return "" if record["outcome"] == "finished" else record["reason"]
