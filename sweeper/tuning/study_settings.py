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
from sweeper.store.schema import RUNS
from sweeper.tuning.samplers import QuasiRandomSampler
from sweeper.tuning.space import Space

Mode = Literal["max", "min"]

#: Our own measures, of the runs and after every epoch, and whether more or less is better.
OBJECTIVES: dict[str, Mode] = {
    "val_accuracy": "max",
    "train_accuracy": "max",
    "val_loss": "min",
    "train_loss": "min",
}


@dataclass(frozen=True, slots=True)
class Objective:
    """What measures how good a trial is: a column, or a name that a module logs."""

    column: str
    mode: Mode

    @property
    def worst(self) -> float:
        """The value of a trial that diverged."""
        if self.mode == "min":
            return math.inf
        return 0.0 if self.column in OBJECTIVES else -math.inf

    @property
    def spelled(self) -> str:
        """What `parse_objective` reads: a name that is no column includes its direction."""
        return self.column if self.column in OBJECTIVES else f"{self.column} {self.mode}"


def parse_objective(
    text: str | None, metric: str = "val_accuracy", metric_mode: Mode | None = None
) -> Objective:
    """The objective of this name; the metric of the runs if it is None.

    The text is a column, or a name that the module logs, which a direction may follow.
    ValueError if the direction is not known.
    """
    given = metric if text is None else str(text).strip()
    name, _, word = given.rpartition(" ")
    modes: dict[str, Mode] = {"max": "max", "min": "min"}
    if word not in modes:
        name = given
    mode = OBJECTIVES.get(name) or modes.get(word) or (metric_mode if given == metric else None)
    if mode is None and name.endswith("loss"):
        mode = "min"
    if mode is None or (name in RUNS and name not in OBJECTIVES):
        msg = (
            f"hydra.sweeper.objective must be a column among {', '.join(sorted(OBJECTIVES))}, or a "
            "name that the module logs: the metric, a loss, or followed by its direction as in "
            f"'val/mae min'; got {given}."
        )
        raise ValueError(msg)
    return Objective(name, mode)


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

    def __post_init__(self) -> None:
        """ValueError if the sampler or pruner cannot be built."""
        self.new_sampler(0)
        self.new_pruner()

    @property
    def stored_space(self) -> dict[str, str]:
        """The space as text, for storage."""
        return {key: distribution_to_json(chosen) for key, chosen in self.space.items()}

    @property
    def is_pruned(self) -> bool:
        """Whether trials may be stopped before their end."""
        return not isinstance(self.new_pruner(), NopPruner)

    def new_sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial; it keeps no state between trials, so that studies can resume."""
        kind = import_callable(self.sampler["_target_"], "hydra.sweeper.sampler")
        if kind is QuasiRandomSampler:
            return _build(self.sampler, "sampler", seed=self.sampler_seed, space=self.space)
        return _build(self.sampler, "sampler", seed=self.trial_seed(number))

    def new_pruner(self) -> BasePruner:
        """The pruner."""
        return _build(self.pruner, "pruner")

    def trial_seed(self, number: int) -> int:
        """The seed of a trial's sampler."""
        return zlib.crc32(f"{self.sampler_seed} {number}".encode())

    def record(self) -> dict[str, str]:
        """Each setting as text, under the name that users know."""
        parts = {
            "the search space": {key: str(chosen) for key, chosen in self.space.items()},
            "hydra.sweeper.objectives": [self.objective.spelled],  # a list, as in older studies
            "hydra/sweeper/sampler": self.sampler,
            "hydra.sweeper.sampler_seed": self.sampler_seed,
            "hydra/sweeper/pruner": self.pruner,
        }
        return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def _build(node: Mapping[str, Any], name: str, **more: Any) -> Any:
    options = {str(key): value for key, value in node.items() if key != "_target_"}
    return call(node["_target_"], key=f"hydra.sweeper.{name}", settings={**options, **more})
