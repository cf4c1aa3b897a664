"""Questions of callbacks about the current micro-batch."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.utilities.data import extract_batch_size
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.optimizers.run_strategy import RunStrategy


class AfterSteps(Callback):
    """A callback with a turn after the last step of an epoch, before its validation."""

    _epoch = -1

    def after_steps(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All steps of the epoch are taken."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning validates before it says that the epoch ends."""
        self._once(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch ends; it was not validated if nothing was done yet."""
        self._once(trainer, pl_module)

    def _once(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._epoch != trainer.current_epoch:
            self._epoch = trainer.current_epoch
            self.after_steps(trainer, pl_module)


def after_setup(module: LightningModule, then: Callable[[], None]) -> None:
    """Do something once a module has made all of its layers, before a checkpoint is loaded."""
    own = module.setup

    @wraps(own)
    def setup(stage: str) -> None:
        own(stage)
        then()

    module.setup = setup  # type: ignore[method-assign]


_OF_EACH_BATCH = (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
)


def without_idle_hooks(callback: Callback) -> Callback:
    """The callback, with None for the hooks of each micro-batch that its class leaves empty.

    Lightning passes over a hook that cannot be called, which takes a tenth of calling it.
    """
    for name in _OF_EACH_BATCH:
        if getattr(type(callback), name) is getattr(Callback, name):
            setattr(callback, name, None)
    return callback


class NoProfiler(PassThroughProfiler):
    """Measures nothing, as Lightning's own does, which runs a generator around every hook."""

    _NOTHING = nullcontext()

    def profile(self, action_name: str) -> nullcontext[None]:  # type: ignore[override]
        """Nothing around what is called."""
        return self._NOTHING


def took_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether an optimizer step ended with this micro-batch; Lightning's rule."""
    is_whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
    return is_whole or trainer.is_last_batch


def examples_in(batch: Any, expected: int | None = None) -> int:
    """Examples of a micro-batch: the length of its tensors or lists, or what it says [examples].

    Args:
        batch: as a loader gives it.
        expected: taken where one part of the batch is so long: of images of many sizes only the
            list is as long as there are examples.

    Raises:
        ValueError: if that cannot be seen.
    """
    said = len(batch) if isinstance(batch, Tensor) else getattr(batch, "batch_size", None)
    if isinstance(said, int):  # of a batch of graphs
        return said
    parts = parts_of(batch)
    with_length = filter(_has_length, parts)
    if expected is not None and any(len(part) == expected for part in with_length):
        return expected
    if isinstance(batch, list) and not any(map(_has_length, parts)):
        return len(batch)  # of examples that were not collated
    try:
        return extract_batch_size(parts)
    except MisconfigurationException as error:
        msg = (
            "a batch must show its examples, by a tensor or list with an entry for each or by its "
            f'number "batch_size"; got a {type(batch).__name__} with neither. Give it one of them.'
        )
        raise ValueError(msg) from error


def parts_of(batch: Any) -> list[Any]:
    """What a batch is made of: its values, its items, or the attributes of an object."""
    if isinstance(batch, list | tuple):  # most are, and an abstract class is slow to ask
        return list(batch)
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence):
        return [] if isinstance(batch, str | bytes) else list(batch)
    return list(getattr(batch, "__dict__", {}).values())


def _has_length(part: Any) -> bool:
    """Whether a part of a batch has an entry for each example."""
    return part.ndim > 0 if isinstance(part, Tensor) else isinstance(part, list)


def current_lrs(trainer: Trainer) -> list[float]:
    """The learning rates of the last step, of every group of every optimizer, read back."""
    if isinstance(trainer.strategy, RunStrategy) and trainer.strategy.used_lrs:
        return trainer.strategy.used_lrs
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    return [float(group["lr"]) for group in groups]


def own_lrs(trainer: Trainer) -> list[float]:
    """The module's own rates of the last step, before the factor; empty if there is none."""
    return trainer.strategy.own_lrs if isinstance(trainer.strategy, RunStrategy) else []


def current_lr(trainer: Trainer) -> float:
    """The learning rate of the last step, or of the step to come, of the first group."""
    return current_lrs(trainer)[0]


def ddp_of(trainer: Trainer) -> DistributedDataParallel:
    """The wrapper of the trained module."""
    wrapped = trainer.strategy.model
    assert isinstance(wrapped, DistributedDataParallel)
    return wrapped


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the whole gradient of these parameters, on their device.

    The same as `torch.nn.utils.get_total_norm`, which takes twice as long for small models.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def loss_scale(trainer: Trainer) -> float:
    """The current loss scale: 1 except with 16-mixed."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None else 1.0
