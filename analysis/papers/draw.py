"""Papers' figures from the runs that stand for their points."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.figures.curves import curve_points
from analysis.figures.lines import draw_curve, draw_points
from analysis.figures.points import points, reading_note
from analysis.figures.save import save
from analysis.papers import PAPERS, limit2020
from analysis.papers.goyal2017 import CITATION as PUBLISHED_BY
from analysis.papers.grid import (
    PaperFigure,
    ended,
    median_of_last_epochs,
    missing_points,
    runs_of,
)
from analysis.papers.paper import Paper, command_for, nearest_runs, place_runs
from analysis.tables.comparable_runs import ComparableRuns
from analysis.tables.metric import ACCURACY, Measured

_COLUMN = {"batch": "global_batch", "warmup": "warmup_epochs", "rule": "lr_rule"}
_WORDS = {"batch": "batch {:,}", "warmup": "{:g} epochs warmup", "rule": "lr rule {}"}
_GREY = "#555555"


def draw_paper(name: str, measured: Measured, folder: Path, results: str) -> Iterator[str]:
    """Draw every figure of a paper that the runs allow, and name what is missing.

    Runs without an accuracy are drawn by their metric.

    Yields:
        Lines to print: files written, points missing and the command that runs them.
    """
    runs, curves, metric = measured.runs, measured.curves, measured.metric
    if name == limit2020.NAME:
        stem = f"{style.file_word(metric)}_by_optimizer"
        for path in save(*limit2020.draw(runs, metric), folder / name, stem):
            yield f"wrote {path}"
        yield from limit2020.commands_for_missing(runs, results)
        return
    paper = PAPERS[name]
    compared = nearest_runs(runs, paper)
    placed = place_runs(compared.runs, paper)
    has_accuracy = runs[ACCURACY.name].notna().any()
    for figure in paper.figures:
        by = figure.metric if has_accuracy or figure.metric != ACCURACY else metric
        drawn = draw_figure(paper, replace(figure, metric=by), compared, curves)
        for path in save(*drawn, folder / name, figure.name) if drawn else ():
            yield f"wrote {path}"
        if gaps := missing_points(placed, figure):
            words, proposal = "; ".join(map(str, gaps)), command_for(gaps, paper, placed, results)
            text = f"{figure.name} lacks {words}. To run them, with your other settings unchanged:"
            yield f"{text} {proposal}"


def draw_figure(
    paper: Paper, figure: PaperFigure, compared: ComparableRuns, curves: pd.DataFrame
) -> tuple[Figure, pd.DataFrame] | None:
    """Draw one figure of a paper.

    Returns:
        The figure and its frame; None if no point of it was run.
    """
    placed = place_runs(compared.runs, paper)
    runs = runs_of(placed, figure)
    if not len(ended(runs)):
        return None
    if figure.last_epochs > 1:
        runs = median_of_last_epochs(runs, curves, figure.metric.name, figure.last_epochs)
    drawn, (axes,) = style.new_figure()
    frame = summary = points(runs, figure.metric.name)
    if figure.is_final:
        _draw_final(axes, frame, figure)
        _draw_published(axes, paper, figure, runs)
    else:
        frame = curve_points(runs, curves, figure.metric.name)
        first = figure.zoom_from * float(runs["epochs"].max())
        frame = frame[frame["epoch"] > first].reset_index(drop=True)
        _draw_curves(axes, frame, figure)
    style.value_axis(axes, figure.metric, _when(figure))
    _draw_lines(axes, paper, figure, runs)
    style.legend(drawn, axes)
    note = _note(placed, summary, figure, paper)
    style.titles(drawn, _title(paper, figure, compared), compared.about, note)
    return drawn, frame


def _draw_final(axes: Axes, frame: pd.DataFrame, figure: PaperFigure) -> None:
    column = _COLUMN[figure.along]
    order = {rule: i for i, rule in enumerate(figure.rules)}
    frame = frame.sort_values(column, key=lambda x: x.map(order) if column == "lr_rule" else x)
    shown = frame.assign(place=list(frame[column]))
    linestyle = " " if figure.along == "rule" else "-"
    color = style.ordered_colors(1)[0]
    draw_points(axes, shown, "place", color=color, linestyle=linestyle, label="these runs")
    if figure.along == "batch":
        style.batch_axis(axes, sorted(int(b) for b in frame[column].unique()))
    elif figure.along == "warmup":
        axes.set_xticks(sorted(frame[column].unique()))
        axes.set_xlabel("warmup [epochs]")
    else:
        axes.set_xlabel("learning-rate rule")


def _draw_curves(axes: Axes, frame: pd.DataFrame, figure: PaperFigure) -> None:
    column = _COLUMN[figure.along]
    levels = sorted(frame[column].unique())
    for i, (level, color) in enumerate(zip(levels, style.ordered_colors(len(levels)), strict=True)):
        linestyle = style.line_style(i) if figure.along == "rule" else "-"
        label = _WORDS[figure.along].format(level)
        draw_curve(
            axes, frame[frame[column] == level], color=color, linestyle=linestyle, label=label
        )
    style.epoch_axis(axes)


def _draw_published(axes: Axes, paper: Paper, figure: PaperFigure, runs: pd.DataFrame) -> None:
    """Published means and spreads beside runs that were trained alike."""
    shown = paper.shown_in(figure)
    is_comparable = _is_comparable(paper, figure, runs)
    if not shown or not is_comparable or paper.protocol_differences(runs):
        return
    x = [getattr(p.point, figure.along) for p in shown]
    heights, spreads = [p.accuracy for p in shown], [p.spread for p in shown]
    axes.errorbar(
        x, heights, spreads, fmt="D", color=_GREY, markerfacecolor="none", markersize=4.5,
        capsize=3, label=PUBLISHED_BY,
    )  # fmt: skip
    if figure.along == "batch":
        batches = {p.point.batch for p in shown} & set(figure.batches)
        style.batch_axis(axes, sorted(batches | set(runs["global_batch"])))


def _draw_lines(axes: Axes, paper: Paper, figure: PaperFigure, runs: pd.DataFrame) -> None:
    for (height, source), linestyle in zip(paper.lines, (":", "--"), strict=False):
        if _is_comparable(paper, figure, runs):
            axes.axhline(height, color=_GREY, linewidth=0.9, linestyle=linestyle, label=source)


def _is_comparable(paper: Paper, figure: PaperFigure, runs: pd.DataFrame) -> bool:
    return figure.metric == ACCURACY and paper.is_protocol_of(runs)


def _when(figure: PaperFigure) -> str:
    if not figure.is_final:
        return ""
    return (
        "last epoch" if figure.last_epochs == 1 else f"median of last {figure.last_epochs} epochs"
    )


def _title(paper: Paper, figure: PaperFigure, compared: ComparableRuns) -> str:
    words = figure.title.replace("Accuracy", style.title_word(figure.metric))
    words = words.replace("accuracy", figure.metric.word)
    title = f"{paper.citation}, {figure.name.replace('_', ' ')}: {words}"
    is_there = paper.is_protocol_of(compared.runs)
    return title if is_there else f"{title}\nhere on {compared.title}"


def _note(placed: pd.DataFrame, summary: pd.DataFrame, figure: PaperFigure, paper: Paper) -> str:
    note = reading_note(summary)
    if placed["is_twin"].any():
        note += (
            " A small twin: batches are the paper's share of the training set, warmups the "
            "paper's share of the training; the lines carry the twin's own numbers."
        )
    if gaps := missing_points(placed, figure):
        note += f" {len(gaps)} of {len(figure.points())} points were not run."
    if figure.is_final and paper.shown_in(figure) and _is_comparable(paper, figure, placed):
        unlike = paper.protocol_differences(placed)
        note += f" {PUBLISHED_BY}'s points: mean and standard deviation over 5 runs"
        note += f"; not drawn here: {'; '.join(unlike)}." if unlike else paper.published_remark
    return note
