"""What makes a study what it is; recorded with it, and held against it when it goes on."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler

from sweeper.spec.import_path import imported
from sweeper.tuning.designs import FixedDesign, Grid
from sweeper.tuning.objectives import Objective, check_constraints, objectives
from sweeper.tuning.seen import InOrder
from sweeper.tuning.space import Space, to_json

#: The part of a record that studies of earlier versions lack, and what it was in them.
IN_ORDER, NOT_IN_ORDER = "hydra.sweeper.in_order", "false"


@dataclass(frozen=True, kw_only=True)
class Design:
    """How studies choose and judge their trials.

    Attributes:
        space: what is tuned.
        objectives: what a trial is judged by.
        constraints: bounds on columns of the runs table.
        sampler: `_target_` and options of the sampler.
        sampler_seed: its seed.
        pruner: `_target_` and options of the pruner.
        averaged: words over whose values each trial is a mean.
        lag: trials that may be under way when one is chosen in order; None if each is chosen from
            what is known at that moment [count].
    """

    space: Space
    objectives: Sequence[Objective]
    constraints: Mapping[str, Mapping[str, float]]
    sampler: Mapping[str, Any]
    sampler_seed: int
    pruner: Mapping[str, Any]
    averaged: Sequence[str]
    lag: int | None

    @classmethod
    def of(cls, settings: Mapping[str, Any], space: Space, averaged: Sequence[str]) -> "Design":
        """The design that `hydra.sweeper` describes.

        Raises:
            ValueError: if a setting is wrong or settings do not fit together.
        """
        constraints = settings["constraints"] or {}
        check_constraints(constraints)
        design = cls(
            space=space,
            objectives=objectives(settings["objectives"]),
            constraints=constraints,
            sampler=settings["sampler"],
            sampler_seed=settings["sampler_seed"],
            pruner=settings["pruner"],
            averaged=averaged,
            lag=settings["at_once"] if settings["in_order"] else None,
        )
        design.new_sampler(0)
        if design.is_pruned:
            _check_prunable(design)
        return design

    @property
    def is_pruned(self) -> bool:
        """Whether trials may be stopped before their end."""
        return not isinstance(self.new_pruner(), NopPruner)

    @cached_property
    def num_grid_points(self) -> int | None:
        """How many trials a grid has; None for other samplers."""
        sampler = self._sampler(0)
        return len(sampler.points()) if isinstance(sampler, Grid) else None

    def new_sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial, which depends on the seed and the trials before it alone.

        A study that was cut short thus goes on with what it would have chosen anyhow.

        Args:
            number: of the trial, 0-based.
        """
        sampler = self._sampler(number)
        return InOrder(sampler, self.lag) if self.lag else sampler

    def seed(self, number: int) -> int:
        """The seed of a trial's sampler."""
        return zlib.crc32(f"{self.sampler_seed} {number}".encode())

    def _sampler(self, number: int) -> BaseSampler:
        kind, options = _target(self.sampler, "hydra.sweeper.sampler")
        if issubclass(kind, FixedDesign):
            options |= {"seed": self.sampler_seed, "space": self.space}
        else:
            options |= {"seed": self.seed(number)}
        return kind(**options)

    def new_pruner(self) -> BasePruner:
        """The pruner."""
        kind, options = _target(self.pruner, "hydra.sweeper.pruner")
        return kind(**options)

    def record(self) -> dict[str, str]:
        """Each part as text, under the name that users know it by."""
        return {
            "the space": _text(to_json(self.space)),
            "hydra.sweeper.objectives": _text([o.column for o in self.objectives]),
            "hydra.sweeper.constraints": _text(self.constraints),
            "hydra/sweeper/sampler": _text(self.sampler),
            "hydra.sweeper.sampler_seed": _text(self.sampler_seed),
            "hydra/sweeper/pruner": _text(self.pruner),
            "what trials are a mean over": _text(list(self.averaged)),
            IN_ORDER: NOT_IN_ORDER if self.lag is None else f"true with at_once={self.lag}",
        }


def _target(node: Mapping[str, Any], key: str) -> tuple[Any, dict[str, Any]]:
    options = {str(name): value for name, value in node.items() if name != "_target_"}
    return imported(node["_target_"], key), options


def _check_prunable(design: Design) -> None:
    several = design.objectives
    if design.lag:
        msg = (
            "hydra/sweeper/pruner must be none with hydra.sweeper.in_order=true: what a pruner "
            "stops depends on how far the other trials are at that moment."
        )
        raise ValueError(msg)
    if len(several) > 1:
        msg = (
            "hydra/sweeper/pruner must be none with several objectives, which Optuna cannot "
            f"compare half way; got {', '.join(o.column for o in several)}."
        )
        raise ValueError(msg)
    if several[0].curve is None:
        msg = (
            "hydra/sweeper/pruner needs an objective that is measured every epoch, such as "
            f"val_accuracy or val_loss; got {several[0].column}. Use hydra/sweeper/pruner=none."
        )
        raise ValueError(msg)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
