"""The settings of a study, including its objective: recorded, and compared when it resumes."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import distribution_to_json
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler

from sweeper.spec.import_path import call, import_callable
from sweeper.tuning.samplers import FixedSampler, GridSampler
from sweeper.tuning.space import Space

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
        """What `parse_objective` reads: a name that is no column includes its direction."""
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


def parse_objective(
    text: str | None, metric: str = "val_accuracy", metric_mode: str | None = None
) -> Objective:
    """The objective of this name; the metric if it is None.

    Args:
        text: a column, or a name that the module logs, which a direction may follow.
        metric: of the runs.
        metric_mode: whether more or less of it is better, if that is known.

    Raises:
        ValueError: if the direction is not known.
    """
    given = metric if text is None else str(text).strip()
    name, _, mode = given.rpartition(" ")
    if mode not in _DIRECTIONS:
        name, mode = given, (metric_mode or "") if given == metric else ""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if not mode and not name.endswith("loss"):
        msg = (
            f"hydra.sweeper.objective must be a column among {', '.join(sorted(OBJECTIVES))}, or a "
            "name that the module logs: the metric, a loss, or followed by its direction as in "
            f"'val/mae min'; got {given}."
        )
        raise ValueError(msg)
    direction = _DIRECTIONS[mode or "min"]
    return Objective(name, direction, -math.inf if direction == "maximize" else math.inf, name)


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """How studies choose and judge their trials.

    Sampler and pruner are mappings of `_target_` and options.
    """

    space: Space
    objective: Objective
    sampler: Mapping[str, Any]
    sampler_seed: int
    pruner: Mapping[str, Any]

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        space: Space,
        *,
        metric: str = "val_accuracy",
        metric_mode: str | None = None,
    ) -> "StudySettings":
        """The settings of `hydra.sweeper`.

        ValueError if a setting is wrong or does not fit another.
        """
        settings = cls(
            space=space,
            objective=parse_objective(config["objective"], metric, metric_mode),
            sampler=config["sampler"],
            sampler_seed=config["sampler_seed"],
            pruner=config["pruner"],
        )
        settings.new_sampler(0)
        if settings.is_pruned and settings.objective.curve is None:
            msg = (
                "hydra/sweeper/pruner needs an objective that is measured every epoch, such as "
                f"val_accuracy or val_loss; got {settings.objective.column}. Use "
                "hydra/sweeper/pruner=none."
            )
            raise ValueError(msg)
        return settings

    @property
    def stored_space(self) -> dict[str, str]:
        """The space as text, for storage."""
        return {key: distribution_to_json(chosen) for key, chosen in self.space.items()}

    @property
    def is_pruned(self) -> bool:
        """Whether trials may be stopped before their end."""
        return not isinstance(self.new_pruner(), NopPruner)

    @property
    def num_grid_points(self) -> int | None:
        """How many trials a grid has; None for other samplers."""
        sampler = self.new_sampler(0)
        return len(sampler.points()) if isinstance(sampler, GridSampler) else None

    def new_sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial; it keeps no state between trials, so that studies can resume."""
        kind = import_callable(self.sampler["_target_"], "hydra.sweeper.sampler")
        if isinstance(kind, type) and issubclass(kind, FixedSampler):
            return _build(self.sampler, "sampler", seed=self.sampler_seed, space=self.space)
        return _build(self.sampler, "sampler", seed=self.seed(number))

    def seed(self, number: int) -> int:
        """The seed of a trial's sampler."""
        return zlib.crc32(f"{self.sampler_seed} {number}".encode())

    def new_pruner(self) -> BasePruner:
        """The pruner."""
        return _build(self.pruner, "pruner")

    def record(self) -> dict[str, str]:
        """Each setting as JSON, under the name that users know."""
        parts = {
            "the search space": self.stored_space,
            "hydra.sweeper.objectives": [self.objective.spelled],  # a list, as in older studies
            "hydra/sweeper/sampler": self.sampler,
            "hydra.sweeper.sampler_seed": self.sampler_seed,
            "hydra/sweeper/pruner": self.pruner,
        }
        return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def _build(node: Mapping[str, Any], name: str, **more: Any) -> Any:
    options = {str(key): value for key, value in node.items() if key != "_target_"}
    return call(node["_target_"], key=f"hydra.sweeper.{name}", settings={**options, **more})
