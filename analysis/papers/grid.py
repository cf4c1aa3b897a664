"""The grid behind a paper's figure: its points, the runs that stand at them, and those missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.which_runs import ended

#: How far beyond a figure's batches a published one may lie, as a factor.
_BEYOND = 1.1


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a paper's grid, in the paper's numbers.

    Attributes:
        batch: global batch [examples].
        warmup: [epochs].
        rule: the lr rule.
    """

    batch: int
    warmup: float
    rule: str = "linear"

    def __str__(self) -> str:
        return f"batch {self.batch:,} warmup {self.warmup:g} {self.rule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """A figure of a paper.

    Attributes:
        name: for the file, such as figure_6a.
        title: what it shows.
        batches: global batches in it [examples].
        warmups: warmups in it [epochs].
        rules: lr rules in it.
        along: what tells its lines or marks apart: batch, warmup or rule.
        is_final: at the end of the training only; else a curve over epochs.
        last_epochs: for final values, the median over this many last epochs.
        metric: what is drawn.
        zoom_from: first epoch drawn, as a share of the training.
    """

    name: str
    title: str
    batches: Sequence[int]
    warmups: Sequence[float]
    rules: Sequence[str] = ("linear",)
    along: str
    is_final: bool = False
    last_epochs: int = 1
    metric: Metric = ACCURACY
    zoom_from: float = 0.0

    def points(self) -> list[Point]:
        """Every point of the figure."""
        return [Point(*p) for p in product(self.batches, self.warmups, self.rules)]

    def has_room_for(self, point: Point) -> bool:
        """Whether a published point belongs in the figure: at its points, or between batches."""
        low, high = min(self.batches) / _BEYOND, max(self.batches) * _BEYOND
        between = self.along == "batch" and low <= point.batch <= high
        is_like = point.warmup in self.warmups and point.rule in self.rules
        return is_like and (between or point.batch in self.batches)


def runs_at(runs: pd.DataFrame, points: Sequence[Point]) -> list[pd.Series]:
    """Which runs stand at each point.

    Returns:
        A mask of the runs for each point.
    """
    return [
        (runs["paper_batch"] == p.batch)
        & (runs["paper_warmup"] == p.warmup)
        & (runs["lr_rule"] == p.rule)
        for p in points
    ]


def runs_of(runs: pd.DataFrame, figure: PaperFigure) -> pd.DataFrame:
    """The runs of a figure."""
    return runs[
        runs["paper_batch"].isin(figure.batches)
        & runs["paper_warmup"].isin(figure.warmups)
        & runs["lr_rule"].isin(figure.rules)
    ]


def missing_points(runs: pd.DataFrame, figure: PaperFigure) -> list[Point]:
    """Points of a figure at which no run finished or diverged."""
    points = figure.points()
    there = runs_at(ended(runs), points)
    return [point for point, here in zip(points, there, strict=True) if not here.any()]


def median_of_last_epochs(
    runs: pd.DataFrame, curves: pd.DataFrame, measure: str, count: int
) -> pd.DataFrame:
    """Runs with a measure replaced by its median over their last epochs.

    A run without a curve keeps its last value.
    """
    ordered = curves.sort_values(["run_id", "epoch"])
    last = ordered.groupby("run_id").tail(count)
    medians = runs["run_id"].map(last.groupby("run_id")[measure].median())
    return runs.assign(**{measure: medians.fillna(runs[measure])})
