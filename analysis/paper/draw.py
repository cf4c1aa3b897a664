"""A paper's figure from the runs that stand for its points."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.curves import curve_points
from analysis.figures.points import points, reading_note
from analysis.figures.style import (
    DIVERGED,
    batch_axis,
    legend,
    line_style,
    new_figure,
    ordered_colors,
    percent_axis,
    titles,
)
from analysis.paper.design import Paper, PaperFigure, in_paper_numbers, missing, of_figure
from analysis.studies import Study

_COLUMN = {"batch": "global_batch", "warmup": "warmup_epochs", "rule": "lr_rule"}
_WORDS = {"batch": "batch {:,}", "warmup": "{:g} epochs warmup", "rule": "lr rule {}"}


def draw(
    paper: Paper, figure: PaperFigure, study: Study, curves: pd.DataFrame
) -> tuple[Figure, pd.DataFrame] | None:
    """Draw one figure of a paper.

    Args:
        paper: the paper.
        figure: its figure.
        study: runs that may be compared.
        curves: their curves.

    Returns:
        The figure and its frame; None if no point of it was run.
    """
    placed = in_paper_numbers(study.runs, paper)
    runs = of_figure(placed, figure)
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    if not len(ended):
        return None
    drawn, (axes,) = new_figure(7.2, 4.6)
    summary = points(runs, figure.measure)
    if figure.is_final:
        frame = summary
        _draw_final(axes, frame, figure)
    else:
        frame = curve_points(runs, curves, figure.measure)
        first = figure.zoom_from * float(runs["epochs"].max())
        frame = frame[frame["epoch"] > first].reset_index(drop=True)
        _draw_curves(axes, frame, figure)
    _label(axes, figure)
    _draw_reference(axes, paper, figure, runs)
    legend(drawn, axes)
    titles(drawn, _title(paper, figure, study), study.about, _note(placed, summary, figure))
    return drawn, frame


def is_same_protocol(runs: pd.DataFrame, epochs: int) -> bool:
    """Whether runs may stand beside published ImageNet, ResNet-50 numbers.

    Args:
        runs: uses `data`, `model`, `epochs`.
        epochs: of the published runs.
    """
    first = runs.iloc[0]
    return (
        "imagenet" in str(first["data"]).lower()
        and "resnet50" in str(first["model"]).lower().replace("-", "")
        and bool((runs["epochs"] == epochs).all())
    )


def _draw_final(axes: Axes, frame: pd.DataFrame, figure: PaperFigure) -> None:
    x = frame[_COLUMN[figure.along]]
    color = ordered_colors(1)[0]
    axes.plot(x, frame["mean"], "-o", color=color)
    axes.fill_between(x, frame["low"], frame["high"], color=color, alpha=0.2, linewidth=0)
    diverged = frame[frame["num_diverged"] > 0]
    axes.scatter(
        diverged[_COLUMN[figure.along]],
        [0.02] * len(diverged),
        marker="x",
        color=DIVERGED,
        transform=axes.get_xaxis_transform(),
    )
    if figure.along == "batch":
        batch_axis(axes, sorted(int(b) for b in x.unique()))
    else:
        axes.set_xticks(sorted(x.unique()))
        axes.set_xlabel("warmup [epochs]")


def _draw_curves(axes: Axes, frame: pd.DataFrame, figure: PaperFigure) -> None:
    column = _COLUMN[figure.along]
    levels = sorted(frame[column].unique())
    for i, (level, color) in enumerate(zip(levels, ordered_colors(len(levels)), strict=True)):
        style = line_style(i) if figure.along == "rule" else "-"
        of_level = frame[frame[column] == level]
        line = of_level[of_level["outcome"] == "finished"]
        label = _WORDS[figure.along].format(level)
        axes.plot(line["epoch"], line["mean"], style, color=color, label=label)
        axes.fill_between(line["epoch"], line["low"], line["high"], color=color, alpha=0.2, lw=0)
        lost = of_level[of_level["outcome"] == "diverged"]
        axes.plot(lost["epoch"], lost["mean"], style, color=color, linewidth=0.7)
        axes.plot(lost["epoch"].iloc[-1:], lost["mean"].iloc[-1:], "x", color=DIVERGED)
    axes.set_xlabel("epoch")


def _label(axes: Axes, figure: PaperFigure) -> None:
    if figure.measure == "val_loss":
        axes.set_ylabel("validation loss [nats]")
        return
    percent_axis(axes, "validation accuracy" + (", last epoch" if figure.is_final else ""))


def _draw_reference(axes: Axes, paper: Paper, figure: PaperFigure, runs: pd.DataFrame) -> None:
    is_accuracy = figure.measure == "val_accuracy"
    if paper.reference and is_accuracy and is_same_protocol(runs, paper.epochs):
        height, source = paper.reference
        axes.axhline(height, color="#555555", linewidth=0.9, linestyle=":", label=source)


def _title(paper: Paper, figure: PaperFigure, study: Study) -> str:
    number = figure.name.replace("_", " ")
    title = f"{paper.citation}, {number}: {figure.title}"
    if is_same_protocol(study.runs, paper.epochs):
        return title
    return f"{title}\nhere on {study.title}"


def _note(placed: pd.DataFrame, summary: pd.DataFrame, figure: PaperFigure) -> str:
    note = reading_note(summary)
    if placed["is_twin"].any():
        note += (
            " A small twin: batches are the paper's share of the training set, warmups the "
            "paper's share of the training; the lines carry the twin's own numbers."
        )
    gaps = missing(placed, figure)
    if gaps:
        note += f" {len(gaps)} of {len(figure.points())} points were not run."
    return note
