"""The LightningModule: a classifier of any model; how it trains is the callbacks' business."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_modules.modules.loss import score


class Classifier(pl.LightningModule):
    """Computes a loss, names its metrics, makes its optimizer.

    Steps return `sums`, of each metric over the examples of a micro-batch, so that callbacks can
    average over all examples of all ranks.

    `label_smoothing` is the fraction of the target spread over all classes, in training only.
    """

    metrics = ("loss", "accuracy")

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], Optimizer],
        *,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self._make_optimizer, self._label_smoothing = make_optimizer, label_smoothing

    def configure_optimizers(self) -> Optimizer:
        """The optimizer; a callback sets its learning rate at each step."""
        return self._make_optimizer(self.model)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        """Mean loss of one micro-batch, and the sums of its metrics."""
        del batch_idx
        loss, right = self._score(batch, label_smoothing=self._label_smoothing)
        return {"loss": loss, "sums": _sums(loss, right, len(batch[1]))}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The sums of a micro-batch's metrics."""
        del batch_idx
        return _sums(*self._score(batch), len(batch[1]))

    def _score(
        self, batch: tuple[Tensor, Tensor], *, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        outputs = self.model(_in_memory_format(batch[0]))
        return score(self.model, outputs, batch[1], label_smoothing=label_smoothing)


def _sums(loss: Tensor, right: Tensor, examples: int) -> dict[str, Tensor]:
    return {"loss": loss.detach() * examples, "accuracy": right}


def _in_memory_format(inputs: Tensor) -> Tensor:
    """Images with their channels last, as the model has its weights; others as they are."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
