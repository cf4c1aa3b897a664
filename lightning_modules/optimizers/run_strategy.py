"""DDP whose optimizer steps may be taken at a multiple of the optimizer's own rates."""

import inspect
from collections.abc import Callable
from typing import Any

from pytorch_lightning.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

# Running statistics are merged once an epoch, so nothing is broadcast at each step.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"  # before torch 2.15
)
_DDP_SETTINGS: dict[str, Any] = {_SYNC_BUFFERS: False, "gradient_as_bucket_view": True}


class RunStrategy(DDPStrategy):
    """Takes each step of a module's own optimizers at their rates times a factor.

    The rates are put back after the step, so that schedulers, some of which multiply the
    rate that they find, never see the factor. Every step passes here, of manual optimization too.

    Attributes:
        factor: of the steps to come; None leaves the rates alone.
        own_lrs: of the last step, of every group of its optimizer, before the factor.
        used_lrs: the same after the factor, as read back from the optimizer.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**_DDP_SETTINGS | settings)
        self.factor: float | None = None
        self.own_lrs: list[float] = []
        self.used_lrs: list[float] = []

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Step; whatever happens in it, the rates are the optimizer's own afterwards."""
        if self.factor is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        groups = optimizer.param_groups
        own = [group["lr"] for group in groups]
        for group, lr in zip(groups, own, strict=True):
            group["lr"] = lr * self.factor
        try:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        finally:
            self.own_lrs = [float(lr) for lr in own]
            self.used_lrs = [float(group["lr"]) for group in groups]
            for group, lr in zip(groups, own, strict=True):
                group["lr"] = lr
