"""Communication hooks: gradients uncompressed, compressed, or reduced within nodes first."""

from collections.abc import Mapping
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.gradients import power_sgd
from lightning_modules.gradients.hierarchical import Hierarchy
from sweeper.spec import comm_hooks


class CommHook(Protocol):
    """A way for ranks to exchange gradients; a run without one uses DDP's own all-reduce.

    Hooks act on a single rank as well, so that compression rounds on every layout.
    """

    def register(self, model: DistributedDataParallel) -> None:
        """Make DDP exchange gradients this way; before the first backward pass."""
        ...

    def state(self) -> Any:
        """The hook's state for the checkpoint; all ranks take part."""
        ...

    def load_state(self, state: Any) -> None:
        """Restore what `state` returned."""
        ...


class Stateless:
    """A hook that remembers nothing.

    Args:
        hook: DDP's communication hook; None for DDP's own all-reduce.
        hook_state: the hook's first argument.
    """

    def __init__(self, hook: Any = None, hook_state: Any = None) -> None:
        self._hook, self._hook_state = hook, hook_state

    def register(self, model: DistributedDataParallel) -> None:
        """Like `CommHook.register`."""
        if self._hook is not None:
            model.register_comm_hook(self._hook_state, self._hook)

    def state(self) -> None:
        """Nothing is kept."""

    def load_state(self, state: Any) -> None:
        """Nothing is kept."""


def build_comm_hook(config: comm_hooks.CommHook) -> CommHook:
    """The selected communication hook; post-local SGD is a separate callback.

    Raises:
        ValueError: if NCCL's algorithm is chosen where NCCL is not used.
    """
    _check_nccl(config)
    if isinstance(config, comm_hooks.PowerSGD):
        return power_sgd.PowerSGD(rank=config.rank, start_step=config.start_step)
    if isinstance(config, comm_hooks.Hierarchical):
        return Stateless(Hierarchy.exchange, Hierarchy(ranks_per_node=config.ranks_per_node))
    return Stateless(_COMPRESSED.get(config.name))


def ddp_settings(config: comm_hooks.CommHook) -> Mapping[str, Any]:
    """The settings of DDP that a communication hook needs."""
    return power_sgd.DDP_SETTINGS if isinstance(config, comm_hooks.PowerSGD) else {}


def ddp_of(trainer: pl.Trainer) -> DistributedDataParallel:
    """The wrapper of the trained module."""
    wrapped = trainer.strategy.model
    assert isinstance(wrapped, DistributedDataParallel)
    return wrapped


def _check_nccl(config: comm_hooks.CommHook) -> None:
    algorithm = getattr(config, "nccl_algo", None)
    if algorithm is not None and dist.get_backend() != "nccl":
        msg = (
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            f"ring; got comm_hook.nccl_algo={algorithm}. Remove it, or train on GPUs."
        )
        raise ValueError(msg)


def _bf16(state: object, bucket: GradBucket) -> Future[Tensor]:
    # Under torch's own name DDP refuses the hook without CUDA, though gloo exchanges bfloat16.
    del state
    group: Any = torch.distributed.group.WORLD
    return default_hooks.bf16_compress_hook(group, bucket)


_COMPRESSED: Mapping[str, Any] = {"fp16": default_hooks.fp16_compress_hook, "bf16": _bf16}
