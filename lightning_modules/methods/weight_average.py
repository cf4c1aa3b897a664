"""An exponential moving average of the weights, evaluated instead of them."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lightning_modules.modules.steps import ends_step
from lightning_modules.process.shards import shard_like, to_save
from lightning_modules.run_class import call_once_layers_exist


class WeightAverage(Callback):
    """``average <- decay average + (1 - decay) weights`` after each step, from the initial weights.

    BatchNorm's running statistics are not averaged: evaluation uses the current statistics. The
    formula is torch's. Lightning's `WeightAveraging` is not used: it copies the whole module, which
    cannot be done with layers that hold a process group, and starts its average at the weights
    after the first step.

    Args:
        decay: per optimizer step, for any batch [dimensionless].
    """

    def __init__(self, *, decay: float) -> None:
        self.columns: dict[str, float | None] = {"ema_decay": decay}
        self._update = get_ema_multi_avg_fn(decay)
        self._average: list[Tensor] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin with the initial weights; called before a checkpoint is loaded."""

        def begin() -> None:
            self._average = [p.detach().clone() for p in pl_module.parameters()]

        call_once_layers_exist(pl_module, begin)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the average to the module's device, in each weight's own memory format."""
        pairs = zip(pl_module.parameters(), self._average, strict=True)
        self._average = [torch.empty_like(p).copy_(shard_like(p, average)) for p, average in pairs]

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average after a step."""
        if ends_step(trainer, batch_idx):
            weights = [p.detach() for p in pl_module.parameters()]
            self._update(self._average, weights, 0)  # the count, of which this average makes no use

    @torch.no_grad()
    def swap(self, pl_module: LightningModule) -> None:
        """Exchange the weights and their average."""
        weights = [p.detach() for p in pl_module.parameters()]
        own = [weight.clone() for weight in weights]
        for weight, average, kept in zip(weights, self._average, own, strict=True):
            weight.copy_(average)
            average.copy_(kept)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the weights that are evaluated, under their names."""
        averages = dict(zip(pl_module.parameters(), to_save(self._average), strict=True))
        named = pl_module.named_parameters(remove_duplicate=False)
        averaged = {name: averages[parameter] for name, parameter in named}
        checkpoint["evaluated_weights"] = {**checkpoint["state_dict"], **averaged}

    def state_dict(self) -> dict[str, Any]:
        """The average, in the order of the parameters."""
        return {"average": to_save(self._average)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._average = state_dict["average"]
