"""The LightningModule: a classifier of any model; callbacks decide how it trains."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchvision.models.resnet import BasicBlock, Bottleneck

from lightning_modules.data.batches import IndexedData
from lightning_modules.data.text import TextTokens
from lightning_modules.modules.components import build_model
from lightning_modules.process.device import copy_async
from sweeper.spec.config import Component, is_ours


class Classifier(pl.LightningModule):
    """Computes a loss and names its metrics; a run gives it an optimizer.

    Steps return `sums`, of each metric over the examples of a micro-batch, so that callbacks can
    average over all examples of all ranks.

    Args:
        model: logits from inputs.
        label_smoothing: fraction of the target spread over all classes, in training only.
        num_classes: that the outputs must have; None: any.

    Attributes:
        metrics: names of the sums.
    """

    metrics = ("loss", "accuracy")

    def __init__(
        self, model: nn.Module, *, label_smoothing: float = 0.0, num_classes: int | None = None
    ) -> None:
        super().__init__()
        self.model, self._label_smoothing = model, label_smoothing
        self._num_classes = num_classes

    def transfer_batch_to_device(
        self, batch: tuple[Tensor, Tensor], device: torch.device, dataloader_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Move inputs and labels to the device; Lightning's own transfer searches any container."""
        del dataloader_idx
        return copy_async(batch[0], device), copy_async(batch[1], device)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        """Mean loss of a micro-batch, and the sums of its metrics."""
        del batch_idx
        return self._step(batch, label_smoothing=self._label_smoothing)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        """The same, without label smoothing."""
        del batch_idx
        return self._step(batch, label_smoothing=0.0)

    def _step(self, batch: tuple[Tensor, Tensor], *, label_smoothing: float) -> dict[str, Any]:
        inputs, labels = batch
        if inputs.ndim == 4:  # images, in the memory format of the model's weights
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        outputs = self.model(inputs)
        loss, right = score(
            self.model,
            outputs,
            labels,
            label_smoothing=label_smoothing,
            num_classes=self._num_classes,
        )
        return {"loss": loss, "sums": {"loss": loss.detach() * len(labels), "accuracy": right}}


class LanguageModel(Classifier):
    """A classifier of tokens, which also logs the perplexity, exp of the mean loss per token."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._perplexity = _Perplexity()

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        """The same, with the perplexity over all validation examples logged."""
        step = super().validation_step(batch, batch_idx)
        self._perplexity.update(step["loss"], len(batch[0]))
        self.log("val_perplexity", self._perplexity)
        return step


class _Perplexity(Metric):
    """MeanMetric would sum in float32 at first."""

    total: Tensor
    examples: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "examples"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), "sum")

    def update(self, loss: Tensor, examples: int) -> None:
        self.total += loss.double() * examples
        self.examples += examples

    def compute(self) -> Tensor:
        return (self.total / self.examples).exp()


#: From outputs and labels: the mean loss over examples, and the number of correct predictions.
Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def score(
    model: nn.Module,
    outputs: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    num_classes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss [nats per example] and number of correct predictions [examples] of a micro-batch.

    The model's own `score` if there is any, else cross-entropy. An example may be a sequence: its
    loss and its accuracy are means over its positions. All sequences are equally long, so the mean
    over all positions is the mean over examples.

    Outputs are logits, shape (n, classes) for labels of shape (n,), or (n, length, classes) for
    sequences, (n, length), where -100 does not count, as often in each. Label smoothing is the
    fraction of the target spread over all classes.

    Raises:
        ValueError: if label smoothing is set for a model with its own loss, or if there is not an
            output for each of `num_classes`.
    """
    own: Score | None = getattr(model, "score", None)  # isinstance of a protocol would be slower
    if own is not None:
        if label_smoothing:
            msg = (
                "label_smoothing must be 0 with a model that has its own loss; "
                f"got {label_smoothing=}. Remove it, or use another model."
            )
            raise ValueError(msg)
        return own(outputs, labels)
    if num_classes not in (None, outputs.shape[-1]):
        msg = (
            "the model must have an output for each class of the data; got "
            f"{outputs.shape[-1]} outputs, {num_classes} classes. Set the model's argument for it, "
            f"such as model.num_classes={num_classes}, or choose other data."
        )
        raise ValueError(msg)
    loss = functional.cross_entropy(
        outputs.flatten(0, -2), labels.flatten(), label_smoothing=label_smoothing
    )
    right = (outputs.argmax(dim=-1) == labels).sum()
    return loss, right if labels.ndim == 1 else right * len(labels) / (labels >= 0).sum()


def build_classifier(
    component: Component, data: IndexedData, *, label_smoothing: float, zero_init_last_norm: bool
) -> Classifier:
    """Our classifier of the data; images have channels-last format, for speed."""
    shape, num_classes, is_own = data.input_shape, data.num_classes, not is_ours(component.target)
    more = {"causal": False} if isinstance(data, TextTokens) and data.num_masked else {}
    model = build_model(component, data) if is_own else component.build(shape, num_classes, **more)
    if zero_init_last_norm:
        zero_last_norms(model)
    if len(shape) == 3:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kind = LanguageModel if isinstance(data, TextTokens) else Classifier
    return kind(model, label_smoothing=label_smoothing, num_classes=num_classes)


def zero_last_norms(model: nn.Module) -> None:
    """Set the scale of the last norm of every residual block to zero, in place.

    Blocks are torchvision's, and all modules with a method `zero_init_last`, such as timm's.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 5.1.

    Raises:
        ValueError: if the model has no such block.
    """
    found = False
    for module in model.modules():
        if isinstance(module, Bottleneck | BasicBlock):
            last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
            nn.init.zeros_(last.weight)  # pyright: ignore[reportArgumentType]
        elif callable(zero := getattr(module, "zero_init_last", None)):
            zero()
        else:
            continue
        found = True
    if not found:
        msg = (
            "zero_init_last_norm needs a model with residual blocks; "
            f"got {type(model).__name__}. Remove zero_init_last_norm, or give the blocks a method "
            "zero_init_last."
        )
        raise ValueError(msg)
