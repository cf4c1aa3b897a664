"""The angle by which each update turns the weights."""

from collections.abc import Iterable
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from lightning_modules.modules.steps import AroundEvaluation, ends_step
from sweeper.store.schema import ANGLE_COLUMNS


class UpdateAngle(AroundEvaluation):
    """Measures the angle between the weights before and after each optimizer step.

    Of every parameter with two dimensions or more, their mean. Holds a copy of these parameters on
    their device, and reads them twice a step. The columns have the mean and the largest of the
    steps since the row before [radians].

    Source:
        Kosson et al. 2024, arXiv:2410.23922 (angular updates; there for each neuron).
    """

    def __init__(self) -> None:
        self._before: list[Tensor] = []
        self._steps = 0
        self._sum: Tensor | float = 0.0
        self._largest: Tensor | float = 0.0
        self.columns: dict[str, float | None] = dict.fromkeys(ANGLE_COLUMNS)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights before the first step."""
        self._before = [p.detach().clone() for p in _matrices(pl_module)]

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure the step that ended with this micro-batch, if one did."""
        if self._before and ends_step(trainer, batch_idx):
            now = _matrices(pl_module)
            angle = mean_angle(self._before, now)
            for old, new in zip(self._before, now, strict=True):
                old.copy_(new)
            self._steps += 1
            self._sum = self._sum + angle
            largest = torch.as_tensor(self._largest, dtype=angle.dtype, device=angle.device)
            self._largest = torch.maximum(angle, largest)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Describe the steps so far, and begin anew."""
        self.columns = dict.fromkeys(ANGLE_COLUMNS)
        if self._steps:
            values = float(self._sum) / self._steps, float(self._largest)
            self.columns = dict(zip(ANGLE_COLUMNS, values, strict=True))
        self.load_state_dict({"steps": 0, "sum": 0.0, "largest": 0.0})

    def state_dict(self) -> dict[str, Any]:
        """The steps since the row before, in plain containers."""
        return {
            "steps": self._steps, "sum": float(self._sum), "largest": float(self._largest)
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._steps = state_dict["steps"]
        self._sum, self._largest = state_dict["sum"], state_dict["largest"]


def mean_angle(before: Iterable[Tensor], after: Iterable[Tensor]) -> Tensor:
    """The mean of the angles between two lists of tensors, those of zeros left out [radians].

    From the distance of the unit vectors, in float64: to 1e-15, however small the angle.
    """
    angles: list[Tensor] = []
    for old, new in zip(before, after, strict=True):
        u, v = old.double().flatten(), new.double().flatten()
        apart = (v / v.norm() - u / u.norm()).norm()  # nan for zeros
        angles.append(2 * torch.asin((apart / 2).clamp(max=1)))
    return torch.stack(angles).nanmean().nan_to_num(nan=0.0)


def _matrices(module: LightningModule) -> list[Tensor]:
    return [p.detach() for p in module.parameters() if p.ndim > 1]
