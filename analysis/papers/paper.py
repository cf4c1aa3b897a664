"""A paper: its figures, its published numbers, its claims, and which of our runs stand for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import product

import pandas as pd

from analysis.papers.claim import PLACE, Claim, Point, point_masks, price_of
from analysis.stats.best_setting import choose_settings
from analysis.tables.comparable_runs import ComparableRuns, group_comparable, stored_configs
from analysis.tables.metric import ACCURACY, LOSS, Metric
from analysis.tables.settings import comparable_settings
from analysis.tables.which_runs import ended_runs

IMAGENET_EXAMPLES = 1_281_167
#: How far beyond a figure's batches a published batch may lie, as a factor.
_BEYOND = 1.1


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


@dataclass(frozen=True, slots=True)
class Published:
    """A published accuracy.

    Attributes:
        point: batch, warmup and rule of it.
        accuracy: mean over its runs (0 to 1).
        spread: standard deviation over its runs, in accuracy (0 to 1).
    """

    point: Point
    accuracy: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper whose points are batches, warmups and lr rules.

    Attributes:
        name: for the command line.
        citation: for titles.
        epochs: length of its training, which warmups are relative to.
        figures: in the paper's order.
        claims: what it states.
        lines: accuracies of other work on ImageNet and ResNet-50 in as many epochs (0 to 1), each
            with its source.
        published: accuracies that stand as points in figures of the last epochs.
        published_remark: how those runs were trained differently, to end the note; else a full
            stop.
        protocol: what those runs have in common, as values of columns of the runs table.
    """

    name: str
    citation: str
    epochs: int = 90
    figures: Sequence[PaperFigure]
    claims: Sequence[Claim]
    lines: Sequence[tuple[float, str]] = ()
    published: Sequence[Published] = ()
    published_remark: str = "."
    protocol: Mapping[str, float] = field(default_factory=dict[str, float])

    def published_in(self, figure: PaperFigure) -> list[Published]:
        """The published points that belong in a figure: at its points, or between its batches."""
        low, high = min(figure.batches) / _BEYOND, max(figure.batches) * _BEYOND
        return [
            published
            for published in self.published
            for batch, warmup, rule in [astuple(published.point)]
            if warmup in figure.warmups and rule in figure.rules
            if batch in figure.batches or (figure.along == "batch" and low <= batch <= high)
        ]

    def is_protocol_of(self, runs: pd.DataFrame) -> bool:
        """Whether runs may be compared with published numbers of ResNet-50 on ImageNet."""
        first = runs.iloc[0]
        return (
            "imagenet" in str(first["data"]).lower()
            and "resnet50" in str(first["model"]).lower().replace("-", "")
            and bool((runs["epochs"] == self.epochs).all())
        )

    def protocol_differences(self, runs: pd.DataFrame) -> list[str]:
        """How these runs were trained differently from the published points, in words."""
        known = runs.assign(rate_per_example=runs["base_lr"] / runs["base_batch"])
        return [
            f"{name} is {' and '.join(f'{value:.4g}' for value in values)}, there {there:.4g}"
            for name, there in self.protocol.items()
            for values in [sorted(known[name].astype(float).unique())]
            if not all(math.isclose(value, there, rel_tol=1e-6) for value in values)
        ]


def place_runs(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Add the point of the paper that each run represents.

    A run of a small twin (`twin_of`) represents the paper's batch that is the same fraction of the
    training set, and the warmup that is the same fraction of the training. Any other run represents
    its own batch and warmup. A run whose length or warmup is in steps or examples represents none.

    Returns:
        The runs of the paper's grid, with `paper_batch`, `paper_warmup` and `is_twin`.
    """
    runs = _in_epochs(runs)
    is_twin = runs["twin_of"].notna()
    own = runs["global_batch"].astype(float)
    batch = (own * (IMAGENET_EXAMPLES / runs["num_train_examples"])).where(is_twin, own)
    warmup = (runs["warmup_epochs"] * paper.epochs / runs["epochs"]).where(
        is_twin, runs["warmup_epochs"]
    )
    grid = sorted({b for figure in paper.figures for b in figure.batches})
    placed = runs.assign(
        paper_batch=pd.array([nearest_batch(b, grid) for b in batch], dtype="Int64"),
        paper_warmup=warmup.round(6),
        is_twin=is_twin,
    )
    return placed[placed["paper_batch"].notna()].astype({"paper_batch": "int64"})


def _in_epochs(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs whose length and warmup are given in epochs."""
    maybe = runs["config_json"].fillna("").str.contains('"epochs": null|"warmup_unit": "')
    is_other = maybe.to_numpy(dtype=bool, copy=True)
    configs = stored_configs(runs[is_other])  # parsing those of all runs takes seconds
    known = [config.settings for config in configs]
    is_other[is_other] = [s.get("epochs", 0) is None or bool(s.get("warmup_unit")) for s in known]
    return runs[~is_other]


def nearest_batch(batch: float, grid: Sequence[int]) -> int | None:
    """The paper's batch within 2 %, as whole examples allow; None if there is none."""
    near = [b for b in grid if abs(batch / b - 1) < 0.02]
    return min(near, key=lambda b: abs(batch - b)) if near else None


def nearest_runs(runs: pd.DataFrame, paper: Paper) -> ComparableRuns:
    """The comparable runs of which most are on the paper's grid.

    Where rates or further settings were tried at its points, each point is at its best one.
    """
    nearest = max(group_comparable(runs), key=lambda group: len(place_runs(group.runs, paper)))
    tuned, columns = comparable_settings(runs)
    at_point = ["warmup_epochs", "lr_rule"]
    metric = ACCURACY if tuned[ACCURACY.name].notna().any() else LOSS
    tried = tuned.groupby([*at_point, "global_batch"])[columns].nunique().max()
    further = [name for name in columns if tried[name] > 1]
    if not further or not tuned[metric.name].notna().any():
        return nearest
    found = [choose_settings(rows, further, metric) for _, rows in tuned.groupby(at_point)]
    prices = [part.runs["global_batch"].map(part.price) for part in found]
    best = pd.concat([part.runs for part in found]).assign(**{price_of(metric): pd.concat(prices)})
    counts = [len(place_runs(of, paper)[PLACE].drop_duplicates()) for of in (best, nearest.runs)]
    if counts[0] < counts[1]:
        return nearest
    about = "; ".join(filter(None, [nearest.about, f"each point at its best {', '.join(further)}"]))
    return replace(nearest, runs=best, about=about)


def user_point(point: Point, paper: Paper, like: pd.Series) -> tuple[int, float]:
    """Batch and warmup of a paper's point for runs like one; for a small twin, scaled down.

    The twin's batch is the same fraction of its training set, rounded to hundreds or tens unless
    that is too far from the paper's.
    """
    if pd.isna(like["twin_of"]):
        return point.batch, point.warmup
    examples, warmup = int(like["num_train_examples"]), point.warmup * like["epochs"] / paper.epochs
    exact = point.batch * examples / IMAGENET_EXAMPLES
    for own in (round(exact / unit) * unit for unit in (100, 10)):
        is_near = nearest_batch(own * IMAGENET_EXAMPLES / examples, [point.batch]) is not None
        if is_near and own <= examples:
            return own, warmup
    return round(exact), warmup


def select_runs(runs: pd.DataFrame, figure: PaperFigure) -> pd.DataFrame:
    """The runs of a figure."""
    return runs[
        runs["paper_batch"].isin(figure.batches)
        & runs["paper_warmup"].isin(figure.warmups)
        & runs["lr_rule"].isin(figure.rules)
    ]


def missing_points(runs: pd.DataFrame, figure: PaperFigure) -> list[Point]:
    """Points of a figure at which no run finished or diverged."""
    points = figure.points()
    there = point_masks(ended_runs(runs), points)
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
