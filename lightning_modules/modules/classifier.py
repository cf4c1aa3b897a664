"""The LightningModule: a classifier of any model; callbacks decide how it trains."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_modules.layers.zero_init import zero_last_norms
from lightning_modules.modules.loss import score
from lightning_modules.process.transfer import copy_async


class Classifier(pl.LightningModule):
    """Computes a loss and names its metrics; a run gives it an optimizer.

    Steps return `sums`, of each metric over the examples of a micro-batch, so that callbacks can
    average over all examples of all ranks.

    Args:
        model: logits from inputs.
        label_smoothing: fraction of the target spread over all classes, in training only.

    Attributes:
        metrics: names of the sums.
    """

    metrics = ("loss", "accuracy")

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self._label_smoothing = model, label_smoothing

    @classmethod
    def on(
        cls,
        input_shape: tuple[int, ...],
        model: nn.Module,
        *,
        label_smoothing: float,
        zero_init_last_norm: bool,
    ) -> "Classifier":
        """The classifier for inputs of this shape; images have channels-last format, for speed."""
        if zero_init_last_norm:
            zero_last_norms(model)
        if len(input_shape) == 3:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(model, label_smoothing=label_smoothing)

    def transfer_batch_to_device(
        self, batch: tuple[Tensor, Tensor], device: torch.device, dataloader_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Move inputs and labels to the device; Lightning's own transfer searches any container."""
        del dataloader_idx
        return copy_async(batch[0], device), copy_async(batch[1], device)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        """Mean loss of one micro-batch, and the sums of its metrics."""
        del batch_idx
        loss, right = self._score(batch, label_smoothing=self._label_smoothing)
        return {"loss": loss, "sums": _sums(loss, right, len(batch[1]))}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        """The sums of a micro-batch's metrics."""
        del batch_idx
        return {"sums": _sums(*self._score(batch), len(batch[1]))}

    def _score(
        self, batch: tuple[Tensor, Tensor], *, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        outputs = self.model(_in_memory_format(batch[0]))
        return score(self.model, outputs, batch[1], label_smoothing=label_smoothing)


def _sums(loss: Tensor, right: Tensor, examples: int) -> dict[str, Tensor]:
    return {"loss": loss.detach() * examples, "accuracy": right}


def _in_memory_format(inputs: Tensor) -> Tensor:
    """Images in channels-last format, like the model's weights; other inputs unchanged."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
