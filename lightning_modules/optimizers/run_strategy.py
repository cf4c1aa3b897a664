"""DDP whose optimizer steps may be taken at other rates and settings than the optimizer's own."""

import inspect
import pickle
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.utilities.seed import reset_seed
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_modules.layers.ghost_batchnorm import ghost_batchnorms
from lightning_modules.process.saved_classes import find_saved_classes, trust
from lightning_modules.process.shards import check_unsharded
from sweeper.spec.lr_rules import Mappings
from sweeper.spec.scaled_settings import apply_mappings, check_settings
from sweeper.upstream.lightnings import call_before_steps
from sweeper.upstream.torchs import ignore_buffers

_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"  # before torch 2.15
)
_ROUNDING = 1e-3  # relative: ranks may round differently if an optimizer multiplies matrices


class RunStrategy(DDPStrategy):
    """Takes each step of a module's own optimizers at their learning rates times a factor.

    The rates are multiplied after all that a module does before the step, as it may set them, and
    restored after the step: schedulers, some of which multiply the current rate, never see the
    factor. Every step goes through here, in manual optimization too.

    Settings that a rule changes are changed once, in the first step of their group, which from then
    on has its own values as `at_base_batch`, also in checkpoints.

    Args:
        exchanges: whether gradients are exchanged, or seen by a hook; if not, DDP does not wrap the
            module.
        is_users: whether the module, or its model, is a user's. It may leave parameters unused in
            a pass, as with several optimizers, and change buffers, which are then broadcast from
            rank 0, as in any DDP. No buffers are broadcast of our modules, nor of ghost BatchNorm,
            whose statistics are merged once per epoch.
        trusted: classes of objects that a checkpoint may hold.
        mappings: of the groups' settings, from their own values to those of the steps.
        settings: of DDP.
    """

    def __init__(
        self,
        *,
        exchanges: bool = True,
        is_users: bool = False,
        trusted: Collection[str] = (),
        mappings: Mappings | None = None,
        **settings: Any,
    ) -> None:
        own: dict[str, Any] = {_SYNC_BUFFERS: is_users, "find_unused_parameters": is_users}
        # views save the memory of a second copy of the gradients
        super().__init__(gradient_as_bucket_view=True, **own | settings)
        self._trusted, self._mappings = trusted, mappings or {}
        self._exchanges = exchanges
        self._exchanged: set[nn.Parameter] | None = None
        self.num_steps = 0  # taken so far, of all optimizers
        self.num_bare_steps = 0  # those that did not go through here, so without the factor
        self._stepped: list[dict[str, Any]] | None = None  # groups of the optimizer in its step
        self._before: list[Any] = []  # their own rates, while these are multiplied
        self.factor: float | None = None  # of the steps to come; None leaves the rates alone
        self.user_lrs: list[float] = []  # of the last step, by group, before the factor
        self.used_lrs: list[float] = []  # after it, as read back from the optimizer

    def setup(self, trainer: Trainer) -> None:
        """Have the rates multiplied as the last thing before a step."""
        super().setup(trainer)

        def count_bare_step(*_: Any) -> None:
            self.num_bare_steps += self._stepped is None

        call_before_steps(self.precision_plugin, self._multiply_rates)
        call_before_steps(self.precision_plugin, self._change_settings)
        for optimizer in self.optimizers:
            optimizer.register_step_post_hook(count_bare_step)

    def load_checkpoint(
        self, checkpoint_path: Path | str, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Read a checkpoint, and add the module's hyperparameters, as Lightning's checkpoints have.

        ValueError if it holds objects of classes that are not trusted.
        """
        try:
            with trust(self._trusted, checkpoint_path):
                checkpoint = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        except pickle.UnpicklingError as error:
            found = find_saved_classes(checkpoint_path)
            trusted = ",".join(sorted({*found, *self._trusted}))
            way = f"If you trust this file, add 'trusted_classes=[{trusted}]'. " * any(found)
            msg = (
                "a checkpoint must hold tensors, plain values and objects of trusted_classes only, "
                f"to be resumed from; got {', '.join(found) or error} in it. {way}To start the run "
                "again, add rerun=all."
            )
            raise ValueError(msg) from error
        assert self.lightning_module is not None, "it is to be trained"
        return {"hyper_parameters": dict(self.lightning_module.hparams), **checkpoint}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the optimizers' state in the types it was saved in."""
        super().load_optimizer_state_dict(checkpoint)
        # torch converts all loaded state but the step count to the type of its parameter
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            names = [name for group in saved["param_groups"] for name in group["params"]]
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for name, parameter in zip(names, parameters, strict=True):
                state = optimizer.state.get(parameter, {})
                for key, before in saved["state"].get(name, {}).items():
                    now = state.get(key)
                    are_tensors = isinstance(now, Tensor) and isinstance(before, Tensor)
                    if are_tensors and now.dtype != before.dtype:
                        state[key] = before.to(now.device)

    def setup_distributed(self) -> None:
        """Join the ranks; without a process group if there is nothing to exchange."""
        if self._exchanges:
            super().setup_distributed()
        else:  # what the parent does besides making the group
            reset_seed()
            self.set_world_ranks()

    def configure_ddp(self) -> None:
        """Wrap the module, unless there is nobody to exchange gradients with."""
        if not self._exchanges:
            return
        assert self.lightning_module is not None, "it is to be trained"
        module = self.lightning_module
        check_unsharded(module)
        ignore_buffers(module, [b for norm in ghost_batchnorms(module) for b in norm.buffers()])
        self._exchanged = {p for p in module.parameters() if p.requires_grad}
        super().configure_ddp()

    def check_exchanged(self) -> None:
        """Refuse parameters that are trained now, but were not when DDP wrapped the module.

        ValueError if there are any: each rank would have its own.
        """
        if self._exchanged is None or self.world_size == 1:
            return
        assert self.lightning_module is not None, "it is trained"
        named = self.lightning_module.named_parameters()
        late = [name for name, p in named if p.requires_grad and p not in self._exchanged]
        if late:
            more = f" and {len(late) - 1} more" * (len(late) > 1)
            msg = (
                "on several ranks, trained parameters must have requires_grad=True from the start, "
                f"as only those gradients are exchanged; got {late[0]}{more}, unfrozen later. Use "
                "a learning rate of 0 instead of freezing, or devices=1."
            )
            raise ValueError(msg)

    @torch.no_grad()
    def check_agreement(self) -> None:
        """Refuse weights that differ between ranks, by their norms and sums; all ranks take part.

        ValueError if there are any.
        """
        if self._exchanged is None or self.world_size == 1:
            return
        assert self.lightning_module is not None, "it is trained"
        named = {
            n: p
            for n, p in self.lightning_module.named_parameters()
            if p.is_floating_point() or p.is_complex()
        }
        weights = [p.detach() for p in named.values()]
        reals = [torch.view_as_real(w) if w.is_complex() else w for w in weights]
        norms = [torch.linalg.vector_norm(w, dtype=torch.float64) for w in reals]
        sums = [w.sum(dtype=torch.float64) for w in reals]
        own = torch.stack([torch.stack(norms), torch.stack(sums)], dim=1)
        largest = torch.stack([own, -own])  # one exchange for both ends: -max(-x) is min(x)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        apart = largest.sum(0).amax(1) > _ROUNDING * largest[0, :, 0]
        if differing := [
            name for name, is_apart in zip(named, apart.tolist(), strict=True) if is_apart
        ]:
            more = f" and {len(differing) - 1} more" * (len(differing) > 1)
            msg = (
                "all ranks must have the same weights; got different values of "
                f"{differing[0]}{more}. Each rank changes them by itself: from its examples, as "
                "max_norm of an Embedding or a codebook does, or from its own random draws. Make "
                "them buffers, which are copied from rank 0, average their changes over ranks, or "
                "use devices=1."
            )
            raise ValueError(msg)

    def block_backward_sync(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Nothing is exchanged within; there is nothing to block if the module is not wrapped."""
        return super().block_backward_sync() if self._exchanges else nullcontext()

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Take a step; the optimizer's own rates are restored, whatever happens in it.

        ValueError if the optimizer evaluates a batch again of which it only has a part.
        """
        self.num_steps += 1
        self._stepped, passes = optimizer.param_groups, 0
        self._stepped_name = type(optimizer).__name__
        self._lrs_of_step: tuple[list[float], list[float]] = ([], [])

        def run_closure() -> Any:
            nonlocal passes
            passes += 1
            if passes == 2:
                assert self.lightning_module is not None, "it is trained"
                trainer = self.lightning_module.trainer
                if (parts := self.world_size * trainer.accumulate_grad_batches) > 1:
                    msg = (
                        "an optimizer that passes over a batch several times, as LBFGS does, must "
                        f"have all of it in one micro-batch; got {parts} micro-batches, of which "
                        "it has the last. Set micro_batch to the batch and devices=1."
                    )
                    raise ValueError(msg)
            self._restore_rates()  # the closure runs at the own rates, however often it is called
            return closure()

        try:
            return super().optimizer_step(optimizer, run_closure, model, **kwargs)
        finally:
            self._restore_rates()
            self._stepped = None
            self.user_lrs, self.used_lrs = self._lrs_of_step

    def _multiply_rates(self) -> None:
        """Multiply the rates that the groups have now by the factor."""
        if self._stepped is None or self.factor is None:
            return
        self._before = [group["lr"] for group in self._stepped]
        for group, lr in zip(self._stepped, self._before, strict=True):
            group["lr"] = lr * self.factor
        own = [float(lr) for lr in self._before]
        self._lrs_of_step = own, [float(group["lr"]) for group in self._stepped]

    def _change_settings(self) -> None:
        """Change the settings of new groups; ValueError if others are not as they were left."""
        for group in self._stepped or () if self._mappings else ():
            is_new = "at_base_batch" not in group
            own = {name: group.get(name) for name in self._mappings}
            own = group.setdefault("at_base_batch", own)
            changed = apply_mappings(self._mappings, own, self._stepped_name)
            if not is_new:
                differ = [name for name, value in changed.items() if group[name] != value]
                check_settings(differ, self._stepped_name)
            group.update(changed)

    def _restore_rates(self) -> None:
        """Restore the groups' own rates, if they were multiplied."""
        # none, if they were not multiplied or are restored already
        for group, lr in zip(self._stepped or (), self._before, strict=False):
            group["lr"] = lr
        self._before = []


def ddp_wrapper(trainer: Trainer) -> DistributedDataParallel:
    """DDP's wrapper of the trained module."""
    wrapped = trainer.strategy.model
    assert isinstance(wrapped, DistributedDataParallel)
    return wrapped
