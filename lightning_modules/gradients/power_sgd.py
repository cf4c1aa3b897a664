"""PowerSGD's low-rank gradients, with its error feedback kept in checkpoints."""

from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future

from lightning_modules.gradients.rank_states import gather_states
from lightning_modules.optimizers.run_strategy import ddp_of
from sweeper.upstream.torchs import power_sgd_state, set_power_sgd_state

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
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=start_step,
        )
        self._loaded: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook; before the first backward pass."""
        if self._loaded is not None:
            self._restore(self._loaded, pl_module.device)
        ddp_of(trainer).register_comm_hook(self._hook_state, _exchange)

    def state_dict(self) -> dict[str, Any]:
        """Errors of all ranks, factors and steps, in plain containers; all ranks take part."""
        state = power_sgd_state(self._hook_state)
        return {"errors_of_ranks": gather_states(state.pop("errors")), **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, once the model is on its device."""
        self._loaded = state_dict

    def _restore(self, state: dict[str, Any], device: torch.device) -> None:
        errors: list[dict[int, Tensor]] = state["errors_of_ranks"]
        if len(errors) == dist.get_world_size():
            own = errors[dist.get_rank()]
        else:
            own = {
                bucket: torch.stack([error[bucket] for error in errors]).mean(dim=0)
                for bucket in errors[0]
            }
        factors = {name: _on(state[name], device) for name in ("left_factors", "right_factors")}
        saved = {"errors": _on(own, device), **factors, "steps": state["steps"]}
        set_power_sgd_state(self._hook_state, saved)


def _exchange(state: powerSGD_hook.PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """The hook of torch, with its three exchanges finished before anything else is exchanged.

    It starts the second and the third from threads of gloo, which pairs exchanges in the order in
    which each rank started them: DDP's next one could be paired with another rank's second.
    """
    exchanged = powerSGD_hook.powerSGD_hook(state, bucket)
    if not bucket.buffer().is_cuda:  # NCCL's are all started by now
        exchanged.wait()
    return exchanged


def _on(tensors: dict[int, Tensor], device: torch.device) -> dict[int, Tensor]:
    return {bucket: tensor.to(device) for bucket, tensor in tensors.items()}
