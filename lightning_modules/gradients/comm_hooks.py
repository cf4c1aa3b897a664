"""How ranks exchange gradients: as they are, compressed on the way, or within nodes first."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.gradients import power_sgd
from lightning_modules.gradients.hierarchical import Hierarchy
from lightning_modules.gradients.local_steps import LocalSteps


class CommHook(Protocol):
    """A way for ranks to exchange gradients; a run without one uses DDP's own all-reduce.

    Hooks act on a single rank as well, so that compression rounds on every layout. Lightning
    registers hooks on GPUs only, and says nothing elsewhere.
    """

    def register(self, model: DistributedDataParallel) -> None:
        """Make DDP exchange gradients this way; before the first backward pass."""
        ...

    def state(self) -> Any:
        """What the hook keeps from step to step, for the checkpoint; all ranks take part."""
        ...

    def load_state(self, state: Any) -> None:
        """Go on from what `state` gave."""
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
        """As `CommHook.register`."""
        if self._hook is not None:
            model.register_comm_hook(self._hook_state, self._hook)

    def state(self) -> None:
        """Nothing is kept."""

    def load_state(self, state: Any) -> None:
        """Nothing is kept."""


def build_comm_hook(comm_hook: Mapping[str, Any], local: LocalSteps | None) -> CommHook:
    """The communication hook that a `comm_hook` group describes.

    Args:
        comm_hook: the group: `name` and its settings.
        local: of post-local SGD.

    Raises:
        ValueError: if NCCL's algorithm is chosen where NCCL is not used.
    """
    _check_nccl(comm_hook)
    name = comm_hook["name"]
    if name == "powersgd":
        return power_sgd.PowerSGD(rank=comm_hook["rank"], start_step=comm_hook["start_step"])
    if name == "hierarchical":
        return Stateless(Hierarchy.exchange, Hierarchy(ranks_per_node=comm_hook["ranks_per_node"]))
    if local is not None:
        return Stateless(LocalSteps.exchange, local)
    return Stateless(_COMPRESSED.get(name))


def ddp_settings(comm_hook: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of DDP that a communication hook needs."""
    return power_sgd.DDP_SETTINGS if comm_hook["name"] == "powersgd" else {}


def _check_nccl(comm_hook: Mapping[str, Any]) -> None:
    if comm_hook.get("nccl_algo") is not None and dist.get_backend() != "nccl":
        msg = (
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            f"ring; got comm_hook.nccl_algo={comm_hook['nccl_algo']}. Remove it, or train on GPUs."
        )
        raise ValueError(msg)


def _bf16(state: object, bucket: GradBucket) -> Future[Tensor]:
    # Under torch's own name DDP refuses the hook without CUDA, though gloo exchanges bfloat16.
    del state
    group: Any = torch.distributed.group.WORLD
    return default_hooks.bf16_compress_hook(group, bucket)


_COMPRESSED: Mapping[str, Any] = {"fp16": default_hooks.fp16_compress_hook, "bf16": _bf16}
