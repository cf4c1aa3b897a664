"""Objectives of a trial: columns of the runs table, each with its direction."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class Objective:
    """A column that says how good a trial is.

    `worst` is the value of a trial that diverged; `curve` the same quantity per epoch, a column
    of the curves table, or None.
    """

    column: str
    direction: Direction
    worst: float
    curve: str | None = None


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


def objectives(names: Sequence[str]) -> list[Objective]:
    """The objectives of these names.

    Raises:
        ValueError: if there is none, or one is unknown or comes twice.
    """
    known = ", ".join(sorted(OBJECTIVES))
    wrong = [name for name in names if name not in OBJECTIVES]
    if wrong or not names or len(set(names)) < len(names):
        msg = (
            f"hydra.sweeper.objectives must be a list of different columns among {known}; "
            f"got {list(names)}."
        )
        raise ValueError(msg)
    return [OBJECTIVES[name] for name in names]


def check_constraints(constraints: Mapping[str, Any]) -> None:
    """Check the bounds on columns.

    Raises:
        ValueError: if a column is unknown, or its bounds are not min and max.
    """
    for column, bounds in constraints.items():
        given = bounds if isinstance(bounds, Mapping) else {"": bounds}
        are_numbers = all(type(bound) in (int, float) for bound in given.values())
        if column not in OBJECTIVES or not given or set(given) - {"min", "max"} or not are_numbers:
            msg = (
                f"hydra.sweeper.constraints must give min or max of columns among "
                f"{', '.join(sorted(OBJECTIVES))}; got {column}: {bounds}. "
                "Write {peak_memory_gib: {max: 12}}."
            )
            raise ValueError(msg)


def violations(
    constraints: Mapping[str, Mapping[str, float]], row: Mapping[str, float]
) -> dict[str, float]:
    """By how much each bound is exceeded; zero or less where it is satisfied.

    The row has the measured columns, means over the runs of a trial.
    """
    found: dict[str, float] = {}
    for column, bounds in constraints.items():
        if "max" in bounds:
            found[f"{column} max"] = row[column] - bounds["max"]
        if "min" in bounds:
            found[f"{column} min"] = bounds["min"] - row[column]
    return found
