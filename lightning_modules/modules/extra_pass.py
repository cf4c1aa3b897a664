"""A training pass that leaves no trace but its gradients."""

import inspect
from copy import copy, deepcopy
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Metric

from lightning_modules.data.randomness import keep_generators
from lightning_modules.optimizers.sharded_strategy import ShardedStrategy
from lightning_modules.run_class import run_class
from sweeper.upstream.torchs import metric_state, set_metric_state


def call_training_step(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> Any:
    """What `training_step` returns.

    The next pass logs, updates metrics and draws as if this one had not been made.
    """
    metrics = [part for part in pl_module.modules() if isinstance(part, Metric)]
    states = deepcopy([metric_state(metric) for metric in metrics])  # some share their states
    outputs = call_without_logs(trainer, pl_module, batch, batch_idx)
    for metric, state in zip(metrics, states, strict=True):
        set_metric_state(metric, state)
    return outputs


def call_without_logs(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> Any:
    """What `training_step` returns, neither logged nor drawn for; metrics count the pass."""
    # Lightning gives `training_step` the index too if it takes that.
    accepted = inspect.signature(pl_module.training_step).parameters.values()
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in accepted)
    taken = (copy(batch), batch_idx)[: 2 if takes_all else len(accepted)]
    devices = [pl_module.device] if pl_module.device.type == "cuda" else []
    with (
        trainer.precision_plugin.train_step_context(),
        run_class(pl_module).mute("log"),
        keep_generators(),
        torch.random.fork_rng(devices),
    ):
        strategy = trainer.strategy
        if isinstance(strategy, ShardedStrategy):
            return strategy.call("training_step", *taken)
        return pl_module.training_step(*taken)
