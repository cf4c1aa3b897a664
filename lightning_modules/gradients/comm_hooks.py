"""Communication hooks: gradients uncompressed, compressed, or reduced within nodes first."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future

from lightning_modules.gradients import power_sgd
from lightning_modules.gradients.hierarchical import Hierarchy
from lightning_modules.optimizers.run_strategy import ddp_of
from sweeper.spec import config as settings


class GradientExchange(Callback):
    """Has DDP exchange gradients through a communication hook.

    Lightning registers hooks only on GPUs, and silently ignores them elsewhere. Hooks act on a
    single rank too, so that compression rounds gradients on every layout.
    """

    def __init__(self, hook: Any, hook_state: Any = None) -> None:
        self._hook, self._hook_state = hook, hook_state

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook; before the first backward pass."""
        ddp_of(trainer).register_comm_hook(self._hook_state, self._hook)


def gradient_exchange(config: settings.CommHook) -> Callback | None:
    """The selected exchange; None for DDP's own all-reduce. Post-local SGD is built elsewhere.

    Raises:
        ValueError: if NCCL's algorithm is chosen where NCCL is not used.
    """
    _check_nccl(config)
    if isinstance(config, settings.PowerSGD):
        return power_sgd.PowerSGD(rank=config.rank, start_step=config.start_step)
    if isinstance(config, settings.Hierarchical):
        hierarchy = Hierarchy(ranks_per_node=config.ranks_per_node)
        return GradientExchange(Hierarchy.exchange, hierarchy)
    hook = _COMPRESSED.get(config.name)
    return None if hook is None else GradientExchange(hook)


def ddp_settings(config: settings.CommHook) -> Mapping[str, Any]:
    """The settings of DDP that a communication hook needs."""
    return power_sgd.DDP_SETTINGS if isinstance(config, settings.PowerSGD) else {}


def _check_nccl(config: settings.CommHook) -> None:
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
