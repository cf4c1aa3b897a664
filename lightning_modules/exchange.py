"""How ranks exchange gradients: as they are, or compressed on the way."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.local_steps import LocalSteps


def exchange_gradients(
    model: DistributedDataParallel, exchange: Mapping[str, Any], local: LocalSteps | None
) -> None:
    """Make DDP exchange gradients as an `exchange` group says; before the first backward pass.

    The hooks act on a single rank as well, so that compression rounds on every layout. Lightning
    registers hooks on GPUs only, and says nothing elsewhere.

    Args:
        model: wrapped by DDP.
        exchange: the group: `name` and its settings.
        local: of post-local SGD.
    """
    name = exchange["name"]
    if local is not None:
        model.register_comm_hook(local, LocalSteps.exchange)
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "bf16":
        model.register_comm_hook(None, _bf16)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=exchange["rank"],
            start_powerSGD_iter=exchange["start_step"],
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _bf16(state: object, bucket: GradBucket) -> Future[Tensor]:
    # Under torch's own name DDP refuses the hook without CUDA, though gloo exchanges bfloat16.
    del state
    group: Any = torch.distributed.group.WORLD
    return default_hooks.bf16_compress_hook(group, bucket)
