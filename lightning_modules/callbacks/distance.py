"""The distance of a module's weights from their initial values."""

import math

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from lightning_modules.modules.steps import AroundEvaluation
from lightning_modules.process.shards import whole
from lightning_modules.run_class import call_once_layers_exist


class DistanceFromStart(AroundEvaluation):
    """The norm of all parameters minus the initial ones; running statistics are left out.

    The initial weights follow from the seed, so a resumed run has them again once its model is
    built, before the checkpoint is loaded. They are kept in main memory, not on the GPU, and only
    by rank 0; on other ranks the distance is None [dimensionless].

    Source:
        Hoffer, Hubara & Soudry 2017, arXiv:1705.08741, section 3 (the distance from the start).
    """

    def __init__(self) -> None:
        self._start: dict[str, Tensor] = {}
        self.columns: dict[str, float | None] = {"distance_from_start": None}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the weights that training starts from."""

        def keep() -> None:
            named = pl_module.named_parameters()
            self._start = {name: p.detach().to("cpu", copy=True) for name, p in named}

        if trainer.is_global_zero:
            call_once_layers_exist(pl_module, keep)

    @torch.no_grad()
    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the distance, summed in float64."""
        squares = list[float]()
        for name, parameter in pl_module.named_parameters():
            now = whole(parameter)  # of all ranks
            if (start := self._start.get(name)) is not None:  # a module may have gained some
                apart = now.to("cpu", _widest(start)) - start
                squares.append(apart.abs().square().sum().item())
        if trainer.is_global_zero:
            self.columns = {"distance_from_start": math.sqrt(math.fsum(squares))}


def _widest(weights: Tensor) -> torch.dtype:
    """float64, or complex numbers of as many digits."""
    return torch.promote_types(weights.dtype, torch.float64)
