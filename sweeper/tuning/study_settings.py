"""The settings of a study, including its objectives: recorded, and compared when it resumes."""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler

from sweeper.spec.import_path import call, imported
from sweeper.tuning.samplers import FixedSampler, GridSampler
from sweeper.tuning.space import Space, to_json

Direction = Literal["maximize", "minimize"]

_DIRECTIONS: dict[str, Direction] = {"max": "maximize", "min": "minimize"}


@dataclass(frozen=True, slots=True)
class Objective:
    """What measures how good a trial is: a column, or a name that a module logs.

    `worst` is the value of a trial that diverged; `curve` is the same quantity per epoch (a column
    of the curves table or a logged name), or None if there is none.
    """

    column: str
    direction: Direction
    worst: float
    curve: str | None = None

    @property
    def mode(self) -> Literal["max", "min"]:
        """Whether more or less is better."""
        return "max" if self.direction == "maximize" else "min"

    @property
    def spelled(self) -> str:
        """The text that `objectives` parses: a name that is not a column includes its direction."""
        return self.column if self.column in OBJECTIVES else f"{self.column} {self.mode}"


OBJECTIVES = {
    objective.column: objective
    for objective in (
        Objective("val_accuracy", "maximize", 0.0, "val_accuracy"),
        Objective("best_val_accuracy", "maximize", 0.0, "val_accuracy"),
        Objective("train_accuracy", "maximize", 0.0, "train_accuracy"),
        Objective("val_loss", "minimize", math.inf, "val_loss"),
        Objective("best_val_loss", "minimize", math.inf, "val_loss"),
        Objective("train_loss", "minimize", math.inf, "train_loss"),
        Objective("train_s", "minimize", math.inf),
        Objective("wall_s", "minimize", math.inf),
        Objective("peak_memory_gib", "minimize", math.inf),
        Objective("examples_per_s", "maximize", 0.0),
    )
}


def objectives(
    names: Sequence[str] | None, metric: str = "val_accuracy", metric_mode: str | None = None
) -> list[Objective]:
    """The objectives with these names; the metric if names is None.

    ValueError for an empty list, a repeated name, or a name whose direction is not known.
    """
    modes = {metric: metric_mode} if metric_mode else {}
    found = [_objective(name, modes) for name in ([metric] if names is None else names)]
    known = [objective for objective in found if objective]
    if not found or len({objective.column for objective in known}) < len(found):
        columns = ", ".join(sorted(OBJECTIVES))
        msg = (
            f"hydra.sweeper.objectives must be a list of different columns among {columns}, or of "
            "names that the module logs, each the metric, a loss, or followed by its direction as "
            f"in [val/mae min]; got {list(names or ())}."
        )
        raise ValueError(msg)
    return known


def _objective(text: str, modes: Mapping[str, str]) -> Objective | None:
    """An objective by its name; None if its direction is not known."""
    name, _, mode = text.strip().rpartition(" ")
    if mode not in _DIRECTIONS:
        name, mode = text.strip(), modes.get(text.strip(), "")
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if not mode and not name.endswith("loss"):
        return None
    direction = _DIRECTIONS[mode or "min"]
    return Objective(name, direction, -math.inf if direction == "maximize" else math.inf, name)


def check_constraints(constraints: Mapping[str, Any], objectives: Sequence[Objective]) -> None:
    """ValueError if a bounded column is unknown, or its bounds are not min and max."""
    known = {*OBJECTIVES, *(objective.column for objective in objectives)}
    for column, bounds in constraints.items():
        given = bounds if isinstance(bounds, Mapping) else {"": bounds}
        are_numbers = all(type(bound) in (int, float) for bound in given.values())
        if column not in known or not given or set(given) - {"min", "max"} or not are_numbers:
            msg = (
                f"hydra.sweeper.constraints must give min or max of columns among "
                f"{', '.join(sorted(known))}; got {column}: {bounds}. "
                "Write {peak_memory_gib: {max: 12}}."
            )
            raise ValueError(msg)


def violations(
    constraints: Mapping[str, Mapping[str, float]], row: Mapping[str, float]
) -> dict[str, float]:
    """By how much each bound is exceeded by a trial's means; zero or less where satisfied."""
    found: dict[str, float] = {}
    for column, bounds in constraints.items():
        if "max" in bounds:
            found[f"{column} max"] = row[column] - bounds["max"]
        if "min" in bounds:
            found[f"{column} min"] = bounds["min"] - row[column]
    return found


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """How studies choose and judge their trials.

    Sampler and pruner are mappings of `_target_` and options; each trial is a mean over the values
    of the `averaged` overrides; constraints bound columns of the runs table or objectives.
    """

    space: Space
    objectives: Sequence[Objective]
    constraints: Mapping[str, Mapping[str, float]]
    sampler: Mapping[str, Any]
    sampler_seed: int
    pruner: Mapping[str, Any]
    averaged: Sequence[str]

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        space: Space,
        averaged: Sequence[str],
        *,
        metric: str = "val_accuracy",
        metric_mode: str | None = None,
    ) -> "StudySettings":
        """The settings of `hydra.sweeper`; ValueError if one is wrong or does not fit another."""
        constraints = config["constraints"] or {}
        chosen = objectives(config["objectives"], metric, metric_mode)
        check_constraints(constraints, chosen)
        settings = cls(
            space=space,
            objectives=chosen,
            constraints=constraints,
            sampler=config["sampler"],
            sampler_seed=config["sampler_seed"],
            pruner=config["pruner"],
            averaged=averaged,
        )
        settings.new_sampler(0)
        if settings.is_pruned:
            _check_prunable(settings.objectives)
        return settings

    @property
    def is_pruned(self) -> bool:
        """Whether trials may be stopped before their end."""
        return not isinstance(self.new_pruner(), NopPruner)

    @property
    def num_grid_points(self) -> int | None:
        """How many trials a grid has; None for other samplers."""
        sampler = self.new_sampler(0)
        return len(sampler.points()) if isinstance(sampler, GridSampler) else None

    @property
    def columns(self) -> list[str]:
        """Columns of the runs table, and names that modules log, that judge a trial."""
        return list(dict.fromkeys([*(o.column for o in self.objectives), *self.constraints]))

    def new_sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial; it keeps no state between trials, so that studies can resume."""
        kind = imported(self.sampler["_target_"], "hydra.sweeper.sampler")
        if isinstance(kind, type) and issubclass(kind, FixedSampler):
            return _built(self.sampler, "sampler", seed=self.sampler_seed, space=self.space)
        return _built(self.sampler, "sampler", seed=self.seed(number))

    def seed(self, number: int) -> int:
        """The seed of a trial's sampler."""
        return zlib.crc32(f"{self.sampler_seed} {number}".encode())

    def new_pruner(self) -> BasePruner:
        """The pruner."""
        return _built(self.pruner, "pruner")

    def record(self) -> dict[str, str]:
        """Each setting as JSON, under the name that users know."""
        parts = {
            "the search space": to_json(self.space),
            "hydra.sweeper.objectives": [o.spelled for o in self.objectives],
            "hydra.sweeper.constraints": self.constraints,
            "hydra/sweeper/sampler": self.sampler,
            "hydra.sweeper.sampler_seed": self.sampler_seed,
            "hydra/sweeper/pruner": self.pruner,
            "the overrides tagged mean": list(self.averaged),
        }
        return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def _built(node: Mapping[str, Any], name: str, **more: Any) -> Any:
    options = {str(key): value for key, value in node.items() if key != "_target_"}
    return call(node["_target_"], key=f"hydra.sweeper.{name}", settings={**options, **more})


def _check_prunable(several: Sequence[Objective]) -> None:
    if len(several) > 1:
        msg = (
            "hydra/sweeper/pruner must be none with several objectives, for which Optuna does "
            f"not support pruning; got {', '.join(o.column for o in several)}."
        )
        raise ValueError(msg)
    if several[0].curve is None:
        msg = (
            "hydra/sweeper/pruner needs an objective that is measured every epoch, such as "
            f"val_accuracy or val_loss; got {several[0].column}. Use hydra/sweeper/pruner=none."
        )
        raise ValueError(msg)
