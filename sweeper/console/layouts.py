"""Layouts that a run was trained on, as a table: do they give the same weights and metric?"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, isnan

from rich.console import Console

from sweeper.console.printing import text_table
from sweeper.spec.batch import BatchSplit

#: Largest relative difference of any tensor of the model after the epoch. With BatchNorm, training
#: amplifies float32's rounding without a bound worth stating; float64 proves the layouts equal.
BOUNDS = {"64-true": 1e-12, "32-true": 1e-5}
BOUNDS_WITH_BATCHNORM = {"64-true": 1e-12}
#: For a user's module, whose optimizer may amplify rounding, as Adam does for small gradients.
BOUNDS_OF_OWN = {"64-true": 1e-9}

_SAME_VALUE = 1e-6  # relative; a metric may amplify rounding
_COLUMNS = (
    "precision", "ranks", "micro", "acc", "steps", "lr", "value", "difference", "allowed",
    "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One layout after its epoch.

    `difference` is the largest relative difference of any tensor from the first layout, `value` is
    the validation loss in nats per example, or the metric of a user's module, `same_lr` is whether
    every step's learning rate was that of the first layout, `first_value` is that layout's value.
    """

    split: BatchSplit
    precision: str
    difference: float
    same_lr: bool
    steps: int
    value: float
    first_value: float
    has_batchnorm: bool
    is_own: bool
    is_reproducible: bool

    @property
    def allowed(self) -> float | None:
        """The guaranteed bound on the difference; None if there is none."""
        if self.is_reproducible:
            return 0.0
        bounds = BOUNDS_WITH_BATCHNORM if self.has_batchnorm else BOUNDS
        return (BOUNDS_OF_OWN if self.is_own else bounds).get(self.precision)

    @property
    def holds(self) -> bool:
        """Whether the layout gives the same result as the first one."""
        return self.same_training and (self.allowed is None or self._same_value(self.allowed))

    @property
    def same_training(self) -> bool:
        """Whether the weights and the rates are those of the first layout."""
        return self.same_lr and (self.allowed is None or self.difference <= self.allowed)

    @property
    def only_value_differs(self) -> bool:
        """Whether it was trained as the first one, and evaluated otherwise."""
        return self.same_training and not self.holds

    def _same_value(self, allowed: float) -> bool:
        tolerance = max(_SAME_VALUE, 100 * allowed)
        is_close = isclose(self.value, self.first_value, rel_tol=tolerance, abs_tol=tolerance)
        return is_close or (isnan(self.value) and isnan(self.first_value))

    @property
    def verdict(self) -> str:
        """The verdict in a word, for the table."""
        if not self.holds:
            return "value DIFFERS" if self.only_value_differs else "DIFFERS"
        if self.is_reproducible:
            return "bit-identical"
        return "rounding" if self.allowed is None else "same"


def show(rows: Sequence[Trained], console: Console) -> None:
    """Print a line for each layout, and what the columns are."""
    table = text_table(*_COLUMNS, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(
            row.precision,
            str(row.split.world_size),
            str(row.split.micro_batch),
            str(row.split.accumulation_steps),
            str(row.steps),
            "same" if row.same_lr else "DIFFERS",
            f"{row.value:.6f}",
            f"{row.difference:.1e}" if row.difference else "0",
            "-" if row.allowed is None else f"{row.allowed:.0e}" if row.allowed else "0",
            row.verdict,
        )
    console.print(table, soft_wrap=False)
    console.print(
        "micro: examples of a micro-batch. acc: accumulation steps. value: the validation loss, or "
        "the metric of your own module. difference: the largest over the model's tensors, "
        "relative to the tensor's largest value, compared with the first layout after one epoch. "
        "With BatchNorm, training amplifies float32 rounding, so no bound is guaranteed; use "
        "float64 (docs/layouts.md)."
    )
