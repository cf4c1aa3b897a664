"""A run of a few steps on a CPU, as its memory trace trains it, and what would fail it at once."""

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.model_helpers import is_overridden

from lightning_modules.layers.blocks import checkpoint_blocks, find_blocks
from lightning_modules.modules.classifier import build_classifier
from lightning_modules.modules.user_project import build_module
from lightning_modules.process.user_errors import describe_error
from lightning_modules.process.world import has_exchange
from lightning_modules.train import RankContext, train
from sweeper.spec.config import RunConfig
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.spans import gradient_span
from sweeper.spec.worker_args import CHECKPOINT

# Optimizer state is allocated at the first step and coexists with the activations at the second;
# PowerSGD's buffers are made at the third. During a step's second micro-batch the gradients of the
# first are alive.
_STEPS, _STEPS_OF_POWERSGD = 2, 3
_LEAST_MICRO_BATCH = 4  # [examples]
_Fit = Callable[[pl.Trainer, pl.LightningModule, dict[str, Any]], None]


def short_spec(config: RunConfig, micro_batch: int, *, accumulates: bool = True) -> RunSpec:
    """One rank's part of a run for a few steps, in micro-batches of a given size, or all of shards.

    It has all that takes memory: the data set, accumulated gradients (whether or not this run
    accumulates: others of its kind may), the optimizer's state. 16-mixed is traced as bf16-mixed,
    whose sizes are the same, since the loss scaler reads values.
    """
    examples, ranks = config.data.num_train_examples, config.world_size if config.is_sharded else 1
    least = micro_batch * ranks
    batch = least * max(1, min(2 if accumulates else 1, examples // least))
    data: dict[str, Any] = dict(config.resolved["data"])
    comm_hook: dict[str, Any] = dict(config.resolved["comm_hook"])
    if "num_workers" in config.data.settings:
        data["num_workers"] = 0
    if comm_hook["name"] in ("hierarchical", "hybrid"):
        comm_hook = {"name": "all_reduce", "nccl_algo": None}
    for key, value in {"start_step": 2, "start_epoch": 1, "workers": 1}.items():
        if key in comm_hook:  # on a single rank, without the steps of plain all-reduce at the start
            comm_hook[key] = value
    spec = run_spec(
        config.with_changes(
            accelerator="cpu",
            precision={"16-mixed": "bf16-mixed"}.get(config.precision, config.precision),
            batch=batch,
            batch_unit=None,
            micro_batch=micro_batch,
            devices=ranks,
            num_nodes=1,
            epochs=config.epochs or 1,
            steps=None,
            examples=None,
            warmup=0,
            branch=None,
            trunk=None,
            compile=None,
            lr_rule={"name": "none"},
            schedule={"name": "constant"},
            logger={"_target_": None},
            loss_ceiling=None,
            data=data,
            comm_hook=comm_hook,
        )
    )
    steps = min(wanted_steps(config), examples // batch)
    return replace(spec, batch_plan=replace(spec.batch_plan, num_train_examples=steps * batch))


def wanted_steps(config: RunConfig) -> int:
    """Steps after which everything has been allocated once [steps]."""
    delays = config.gradient_delay
    longest = max(delays) if isinstance(delays, tuple) else delays or 0
    held = max(longest, getattr(config.perturbation, "stale_steps", 0))
    return max(_STEPS_OF_POWERSGD if config.comm_hook.name == "powersgd" else _STEPS, held + 2)


def least_micro_batch(bn_span: int) -> int:
    """The smallest micro-batch to try that is a multiple of the BatchNorm span [examples]."""
    return bn_span * -(-_LEAST_MICRO_BATCH // bn_span)


class _EndAfterEpoch(Callback):
    """Ends the run after its first epoch, though it shows the epochs that the user wants.

    A module may make its schedule from them, with a warmup that is longer than an epoch.
    """

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        del pl_module
        trainer.should_stop = True


class _StepsByHand(Exception):
    """A module that takes its steps by itself was to accumulate gradients."""


def train_short_run(
    config: RunConfig, micro_batch: int, fit: _Fit, *, accumulates: bool = True
) -> dict[str, Any]:
    """Train a single rank for a few steps; its record.

    Args:
        config: of the run.
        micro_batch: to train it in [examples].
        fit: called before, or instead of, `Trainer.fit`.
        accumulates: whether to accumulate gradients, unless the module takes its steps by itself.
    """

    def check_and_fit(
        trainer: pl.Trainer, module: pl.LightningModule, loaders: dict[str, Any]
    ) -> None:
        if accumulates and not module.automatic_optimization:
            raise _StepsByHand
        callbacks: list[Callback] = getattr(trainer, "callbacks")  # noqa: B009  untyped
        callbacks.append(_EndAfterEpoch())
        fit(trainer, module, loaders)

    try:
        with tempfile.TemporaryDirectory() as folder:
            context = RankContext(
                rank=0,
                folder=Path(folder),
                checkpoint=Path(folder, CHECKPOINT),
                on_epoch=lambda rows: None,
                fit=check_and_fit,
            )
            return train(short_spec(config, micro_batch, accumulates=accumulates), context)
    except _StepsByHand:
        return train_short_run(config, micro_batch, fit, accumulates=False)


def find_error(config: RunConfig) -> str:
    """The error that a few steps and an evaluation end with; empty if they raise none."""

    def limit_evaluation(trainer: pl.Trainer, *_: Any) -> None:
        trainer.limit_val_batches = 1

    if has_exchange(config.comm_hook, 1, reproducible=bool(config.reproducible)):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    span = config.bn_span if isinstance(config.bn_span, int) else 1
    least = min(least_micro_batch(span), config.data.num_train_examples)
    try:
        record = train_short_run(config, gradient_span(config) or least, limit_evaluation)
    except Exception as error:  # noqa: BLE001  whatever the user's code raises
        traceback.print_exc()
        return describe_error(error)
    return "" if record["outcome"] == "finished" else record["reason"]


def find_block_error(config: RunConfig) -> str:
    """Why a run would be refused for the blocks that it names or recomputes; empty if it would not.

    The module is made without memory and without data. What cannot be made so is left to the run.
    """
    length = config.data.tokens_per_example
    data: Any = SimpleNamespace(input_shape=(length,) if length else (3, 64, 64), num_classes=2)
    try:
        with torch.device("meta"):
            if config.model is None or config.has_own_module:
                module: Any = build_module(config.module)
                module.configure_model()
            else:
                module = build_classifier(
                    config.model, data, label_smoothing=0, zero_init_last_norm=False
                )
    except Exception:  # noqa: BLE001  whatever the user's code raises
        return ""
    if is_overridden("setup", module):  # it may make more
        return ""
    try:
        if config.checkpoint_activations and not config.has_own_module:
            checkpoint_blocks(module.model)
        find_blocks(module, config.fsdp_blocks or ())
    except ValueError as error:
        return str(error)
    return ""
