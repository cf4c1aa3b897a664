"""What a paper's figure needs, which runs have it, and the command for what is missing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

IMAGENET_EXAMPLES = 1_281_167


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
        is_final: after the last epoch only; else a curve over epochs.
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
    measure: str = "val_accuracy"
    zoom_from: float = 0.0

    def points(self) -> list[Point]:
        """Every point of the figure."""
        return [Point(*p) for p in product(self.batches, self.warmups, self.rules)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper whose figures are drawn.

    Attributes:
        name: as on the command line.
        citation: authors, year, arXiv or place.
        figures: its figures.
        experiment: presets that run its points; the first alone for points named by hand.
        epochs: of its runs.
        reference: accuracy that it compares itself with (0 to 1), and where it is from.
    """

    name: str
    citation: str
    figures: Sequence[PaperFigure]
    experiment: str
    epochs: int = 90
    reference: tuple[float, str] | None = None


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
