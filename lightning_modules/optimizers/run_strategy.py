"""DDP whose optimizer steps may be taken at a multiple of the optimizer's own rates."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning_fabric.utilities.seed import reset_seed
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

    Args:
        exchanges: whether gradients are exchanged, or seen by a hook; the module is not wrapped
            otherwise.
        settings: of DDP.

    Attributes:
        factor: of the steps to come; None leaves the rates alone.
        own_lrs: of the last step, of every group of its optimizer, before the factor.
        used_lrs: the same after the factor, as read back from the optimizer.
        num_steps: taken so far, of all optimizers [steps].
    """

    def __init__(self, *, exchanges: bool = True, **settings: Any) -> None:
        super().__init__(**_DDP_SETTINGS | settings)
        self._exchanges, self.num_steps = exchanges, 0
        self.factor: float | None = None
        self.own_lrs: list[float] = []
        self.used_lrs: list[float] = []

    def setup_distributed(self) -> None:
        """Be one of the ranks; without a process group if there is nothing to exchange."""
        if self._exchanges:
            super().setup_distributed()
        else:
            reset_seed()
            self.set_world_ranks()

    def configure_ddp(self) -> None:
        """Wrap the module, unless there is nobody to exchange gradients with."""
        if self._exchanges:
            super().configure_ddp()

    def block_backward_sync(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Nothing is exchanged within; there is nothing to block if the module is not wrapped."""
        return super().block_backward_sync() if self._exchanges else nullcontext()

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Step; whatever happens in it, the rates are the optimizer's own afterwards.

        Raises:
            ValueError: if the optimizer passes over a batch again of which only a part is there.
        """
        self.num_steps += 1
        closure = self._once_per_part(closure)
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

    def _once_per_part(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure of the last micro-batch of a step that is called again only if it is all."""
        passes = 0

        def counted() -> Any:
            nonlocal passes
            passes += 1
            if passes == 2:
                self._check_whole()
            return closure()

        return counted

    def _check_whole(self) -> None:
        assert self.lightning_module is not None, "it is trained"
        parts = self.world_size * self.lightning_module.trainer.accumulate_grad_batches
        if parts > 1:
            msg = (
                "an optimizer that passes over a batch several times, as LBFGS does, must have all "
                f"of it in one micro-batch; got {parts} micro-batches, of which it has the last. "
                "Set micro_batch to the batch and devices=1."
            )
            raise ValueError(msg)
