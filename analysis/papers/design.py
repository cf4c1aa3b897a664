"""What a paper's figure needs, which runs have it, and the command for what is missing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import pandas as pd

IMAGENET_EXAMPLES = 1_281_167

#: How far beyond a figure's batches a published one may lie, as a factor.
_BEYOND = 1.1


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the paper's grid, in the paper's numbers.

    Attributes:
        batch: global batch [examples].
        warmup: [epochs].
        rule: the lr rule.
    """

    batch: int
    warmup: float
    rule: str


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
        last_epochs: where it is final, the value is the median over so many last epochs.
        measure: column that is drawn.
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
    measure: str = "val_accuracy"
    zoom_from: float = 0.0

    def points(self) -> list[Point]:
        """Every point of the figure."""
        return [Point(*p) for p in product(self.batches, self.warmups, self.rules)]

    def has_room_for(self, point: Point) -> bool:
        """Whether a published point belongs into the figure: at its points, or between batches."""
        low, high = min(self.batches) / _BEYOND, max(self.batches) * _BEYOND
        between = self.along == "batch" and low <= point.batch <= high
        is_like = point.warmup in self.warmups and point.rule in self.rules
        return is_like and (between or point.batch in self.batches)


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
    """A paper and its figures.

    Attributes:
        name: for the command line.
        citation: for titles.
        experiment: the preset that runs it; its twin is `<experiment>_small`.
        epochs: length of its training, which warmups are relative to.
        figures: in the paper's order.
        lines: accuracies of other work on ImageNet and ResNet-50 in as many epochs (0 to 1), each
            with its source.
        published: accuracies that stand as points in figures of the last epochs.
        published_remark: in what those runs were trained otherwise, for the note; else a full stop.
        protocol: what those runs have in common, as values of columns of the runs table.
    """

    name: str
    citation: str
    experiment: str
    epochs: int = 90
    figures: Sequence[PaperFigure]
    lines: Sequence[tuple[float, str]] = ()
    published: Sequence[Published] = ()
    published_remark: str = "."
    protocol: Mapping[str, float] = field(default_factory=dict[str, float])

    def shown_in(self, figure: PaperFigure) -> list[Published]:
        """The published points that belong into a figure."""
        return [p for p in self.published if figure.has_room_for(p.point)]


def in_paper_numbers(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Add the point of the paper that each run stands for.

    A run of a small twin (`twin_of` in its config) stands for the paper's batch that is the same
    share of the training set, and for the warmup that is the same share of the training. Any
    other run stands for its own batch and warmup.

    Args:
        runs: uses `config_json`, `global_batch`, `warmup_epochs`, `epochs`, `num_train_examples`.
        paper: the paper.

    Returns:
        The runs of the paper's grid, with `paper_batch`, `paper_warmup` and `is_twin`.
    """
    is_twin = pd.Series(
        [bool(json.loads(text).get("twin_of")) for text in runs["config_json"].fillna("{}")],
        index=runs.index,
        dtype=bool,
    )
    share = runs["global_batch"] * (IMAGENET_EXAMPLES / runs["num_train_examples"])
    batch = share.where(is_twin, runs["global_batch"].astype(float))
    warmup = (runs["warmup_epochs"] * paper.epochs / runs["epochs"]).where(
        is_twin, runs["warmup_epochs"]
    )
    grid = sorted({b for figure in paper.figures for b in figure.batches})
    placed = runs.assign(
        paper_batch=pd.array([_nearest(b, grid) for b in batch], dtype="Int64"),
        paper_warmup=warmup.round(6),
        is_twin=is_twin,
    )
    return placed[placed["paper_batch"].notna()].astype({"paper_batch": "int64"})


def _nearest(batch: float, grid: Sequence[int]) -> int | None:
    """The paper's batch within 2 %, as whole examples allow; None if there is none."""
    near = [b for b in grid if abs(batch / b - 1) < 0.02]
    return min(near, key=lambda b: abs(batch - b)) if near else None


def of_figure(runs: pd.DataFrame, figure: PaperFigure) -> pd.DataFrame:
    """The runs of a figure.

    Args:
        runs: as `in_paper_numbers` returns them.
        figure: the figure.
    """
    return runs[
        runs["paper_batch"].isin(figure.batches)
        & runs["paper_warmup"].isin(figure.warmups)
        & runs["lr_rule"].isin(figure.rules)
    ]


def over_last_epochs(
    runs: pd.DataFrame, curves: pd.DataFrame, measure: str, count: int
) -> pd.DataFrame:
    """Runs with the median of a measure over their last epochs in its place.

    Args:
        runs: one row per run.
        curves: their curves; a run without one keeps its last value.
        measure: a column of both.
        count: how many epochs.
    """
    ordered = curves.sort_values(["run_id", "epoch"])
    last = ordered.groupby("run_id").tail(count)
    medians = runs["run_id"].map(last.groupby("run_id")[measure].median())
    return runs.assign(**{measure: medians.fillna(runs[measure])})


def missing(runs: pd.DataFrame, figure: PaperFigure) -> list[Point]:
    """Points of a figure at which no run finished or diverged.

    Args:
        runs: as `in_paper_numbers` returns them.
        figure: the figure.
    """
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    there = set(zip(ended["paper_batch"], ended["paper_warmup"], ended["lr_rule"], strict=True))
    return [p for p in figure.points() if (p.batch, float(p.warmup), p.rule) not in there]


def command(points: Sequence[Point], paper: Paper, runs: pd.DataFrame, results: str) -> str:
    """The command that runs missing points, as one grid.

    Args:
        points: missing points, in the paper's numbers.
        paper: the paper.
        runs: runs that there are, as `in_paper_numbers` returns them; they say whether a small
            twin is meant, and on how many examples and epochs.
        results: folder that the runs go to.
    """
    twin = runs[runs["is_twin"]]
    batches, warmups = {p.batch for p in points}, {p.warmup for p in points}
    start = "python -m sweeper -m"
    if len(twin):
        first = twin.iloc[0]
        share = first["num_train_examples"] / IMAGENET_EXAMPLES
        batches = {round(b * share / 10) * 10 for b in batches}
        warmups = {w * first["epochs"] / paper.epochs for w in warmups}
        start += f" +experiment={paper.experiment}_small"
    elif len(runs) and (runs.iloc[0]["data"], runs.iloc[0]["model"]) == ("imagenet", "resnet50"):
        start += f" +experiment={paper.experiment}"
    elif len(runs):
        first = runs.iloc[0]
        start += f" epochs={first['epochs']} base_lr={first['base_lr']:g}"
    rules = ",".join(sorted({p.rule for p in points}))
    words = [
        start,
        "batch=" + ",".join(f"{b}" for b in sorted(batches)),
        "warmup=" + ",".join(f"{w:g}" for w in sorted(warmups)),
        f"lr_rule={rules}",
    ]
    return " ".join(words if results == "results" else [*words, f"results={results}"])
