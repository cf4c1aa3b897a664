"""Communication hooks: gradients uncompressed, compressed, or reduced within nodes first."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future

from lightning_modules.optimizers.run_strategy import ddp_wrapper
from lightning_modules.process.world import gather_states
from sweeper.spec import config as settings
from sweeper.upstream.torchs import power_sgd_state, set_power_sgd_state


class GradientExchange(Callback):
    """Has DDP exchange gradients through a communication hook.

    Lightning registers hooks only on GPUs, and silently ignores them elsewhere. Hooks act on a
    single rank too, so that compression rounds gradients on every layout.
    """

    def __init__(self, hook: Any, hook_state: Any = None) -> None:
        self._hook, self._hook_state = hook, hook_state

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook; before the first backward pass."""
        ddp_wrapper(trainer).register_comm_hook(self._hook_state, self._hook)


def build_exchange(config: settings.CommHook, *, devices: int) -> Callback | None:
    """The selected exchange; None for DDP's own all-reduce. Post-local SGD is built elsewhere.

    A node has `devices` ranks. ValueError if NCCL's algorithm is chosen where NCCL is not used.
    """
    algorithm = getattr(config, "nccl_algo", None)
    if algorithm is not None and dist.get_backend() != "nccl":
        msg = (
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            f"ring; got comm_hook.nccl_algo={algorithm}. Remove it, or train on GPUs."
        )
        raise ValueError(msg)
    if isinstance(config, settings.PowerSGD):
        return PowerSGD(rank=config.rank, start_step=config.start_step)
    if isinstance(config, settings.Hierarchical | settings.Hybrid):
        is_hybrid = isinstance(config, settings.Hybrid)
        most_mib = config.threshold_mib if is_hybrid else math.inf
        hierarchy = Hierarchy(ranks_per_node=config.ranks_per_node or devices, most_mib=most_mib)
        return GradientExchange(Hierarchy.exchange, hierarchy)
    hook = _COMPRESSED.get(config.name)
    return None if hook is None else GradientExchange(hook)


def _bf16(state: object, bucket: GradBucket) -> Future[Tensor]:
    # Under torch's own name DDP refuses the hook without CUDA, though gloo exchanges bfloat16.
    del state
    group: Any = torch.distributed.group.WORLD
    return default_hooks.bf16_compress_hook(group, bucket)


_COMPRESSED: Mapping[str, Any] = {"fp16": default_hooks.fp16_compress_hook, "bf16": _bf16}


class Hierarchy:
    """The mean over ranks in three phases, so that a single rank of each node uses the network.

    Each node's ranks sum their gradients on its first rank; the first ranks all-reduce the sums;
    each broadcasts the result within its node. The network carries a gradient per node instead of
    per rank. The phases of a bucket run in turn and the backward pass waits for them, unlike in
    DDP's own exchange.

    Groups are made at the first exchange, by all ranks together.

    A node's ranks are numbered consecutively; fewer ranks than `ranks_per_node` count as a node.
    Buckets larger than `most_mib` are all-reduced as by DDP itself [MiB].

    Source:
        Jia et al. 2018, arXiv:1807.11205, section 4.2 (three phases; its third is the broadcast),
        and its hybrid of both by size; DDP's buckets fuse the tensors.
    """

    def __init__(self, *, ranks_per_node: int, most_mib: float = math.inf) -> None:
        self._ranks_per_node, self._most_bytes = ranks_per_node, most_mib * 2**20
        self._groups: tuple[Any, Any] | None = None

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """DDP's exchange of a bucket of gradients: their mean over all ranks."""
        if bucket.buffer().nbytes > self._most_bytes:
            world: Any = dist.group.WORLD
            return default_hooks.allreduce_hook(world, bucket)
        future: Future[Tensor] = Future()
        future.set_result(self.average(bucket.buffer()))
        return future

    def average(self, tensor: Tensor) -> Tensor:
        """The mean over ranks, in place."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if self._groups is None:
            size = min(self._ranks_per_node, world_size)
            firsts = dist.new_group([*range(0, world_size, size)])
            self._groups = dist.new_subgroups(size)[0], firsts
        node, leaders = self._groups
        leader = rank - rank % self._ranks_per_node
        tensor.div_(world_size)
        dist.reduce(tensor, dst=leader, group=node)
        if rank == leader:
            dist.all_reduce(tensor, group=leaders)
        dist.broadcast(tensor, src=leader, group=node)
        return tensor


#: DDP rebuilds its buckets after the first step of a process, unless it looks for unused
#: parameters. Errors and factors are kept by bucket, so a resumed run needs the same buckets at
#: once.
DDP_SETTINGS = {"find_unused_parameters": True}


class PowerSGD(Callback):
    """torch's PowerSGD, resumable.

    Each rank feeds back the compression error of its own gradient. On as many ranks as before, a
    resumed run continues with the same errors; on another number, each rank takes the mean of all
    errors, so that their mean, which the next exchange adds, stays the same.

    Up to `start_step` [steps] gradients are exchanged uncompressed; `rank` is that of the
    approximation.

    Source:
        Vogels et al. 2019, arXiv:1905.13727.
    """

    def __init__(self, *, rank: int, start_step: int) -> None:
        self._hook_state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=start_step
        )
        self._loaded: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook; before the first backward pass."""
        if (state := self._loaded) is not None:
            errors: list[dict[int, Tensor]] = state["errors_of_ranks"]
            if len(errors) == dist.get_world_size():
                own = errors[dist.get_rank()]
            else:
                own = {
                    bucket: torch.stack([error[bucket] for error in errors]).mean(dim=0)
                    for bucket in errors[0]
                }
            tensors = {"errors": own, **{k: state[k] for k in ("left_factors", "right_factors")}}
            moved = {
                name: {bucket: tensor.to(pl_module.device) for bucket, tensor in of_buckets.items()}
                for name, of_buckets in tensors.items()
            }
            set_power_sgd_state(self._hook_state, {**moved, "steps": state["steps"]})
        ddp_wrapper(trainer).register_comm_hook(self._hook_state, _exchange)

    def state_dict(self) -> dict[str, Any]:
        """Errors of all ranks, factors and steps, in plain containers; all ranks take part."""
        state = power_sgd_state(self._hook_state)
        return {"errors_of_ranks": gather_states(state.pop("errors")), **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, once the model is on its device."""
        self._loaded = state_dict


def _exchange(state: powerSGD_hook.PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """The hook of torch, with its three exchanges finished before anything else is exchanged.

    It starts the second and the third from threads of gloo, which pairs exchanges in the order in
    which each rank started them: DDP's next could be paired with another rank's second.
    """
    exchanged = powerSGD_hook.powerSGD_hook(state, bucket)
    if not bucket.buffer().is_cuda:  # NCCL's are all started by now
        exchanged.wait()
    return exchanged
