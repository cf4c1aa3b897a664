"""Papers' figures from the runs that stand for their points."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.curves import MOST_BANDS, curve_points, limit_to_end
from analysis.figures.draw import add_doubts
from analysis.figures.final import BATCH, BATCHES, DIVERGED, RULES, WARMUPS, limit_values
from analysis.figures.lines import Lane, draw_curve, draw_points
from analysis.figures.points import points, reading_note, reading_note_of_curves
from analysis.figures.sheet import Drawing, Sheet, save
from analysis.figures.style import Mark, Width
from analysis.papers import PAPERS, limit2020
from analysis.papers.goyal2017 import CITATION as PUBLISHED_BY
from analysis.papers.paper import (
    Paper,
    PaperFigure,
    median_of_last_epochs,
    missing_points,
    nearest_runs,
    place_runs,
    select_runs,
)
from analysis.tables.comparable_runs import ComparableRuns, file_name
from analysis.tables.metric import ACCURACY, Measured, Metric
from analysis.tables.which_runs import ended_runs

_AXES = {"batch": BATCHES, "warmup": WARMUPS, "rule": RULES}


def draw_paper(
    name: str, measured: Measured, folder: Path, width: Width = "screen"
) -> Iterator[Path]:
    """Draw every figure of a paper that the runs allow; the files written.

    Runs without an accuracy are drawn by their metric.
    """
    runs, curves, metric = measured.runs, measured.curves, measured.metric
    if name == limit2020.NAME:
        stem = f"{file_name(metric.word)}_by_optimizer"
        yield from save(draw_optimizers(runs, metric, width), folder / name, stem)
        return
    paper = PAPERS[name]
    compared = add_doubts(nearest_runs(runs, paper))
    has_accuracy = runs[ACCURACY.name].notna().any()
    for figure in paper.figures:
        by = figure.metric if has_accuracy or figure.metric != ACCURACY else metric
        drawn = draw_figure(paper, replace(figure, metric=by), compared, curves, width)
        yield from save(drawn, folder / name, figure.name) if drawn else ()


@style.use_style()
def draw_figure(
    paper: Paper, figure: PaperFigure, compared: ComparableRuns, curves: pd.DataFrame,
    width: Width = "screen",
) -> Drawing | None:  # fmt: skip
    """Draw a figure of a paper; None if no point of it was run."""
    placed = place_runs(compared.runs, paper)
    runs = select_runs(placed, figure)
    if not len(ended_runs(runs)):
        return None
    if figure.last_epochs > 1:
        runs = median_of_last_epochs(runs, curves, figure.metric.name, figure.last_epochs)
    frame = summary = points(runs, figure.metric.name)
    sheet = Sheet.new(width, strips=[figure.is_final and bool(frame["num_diverged"].any())])
    (axes,) = sheet.panels
    names = _line_labels(runs, figure.along)
    if figure.is_final:
        note = reading_note(summary) + _draw_final(sheet, frame, figure, names)
        _draw_published(axes, paper, figure, runs)
    else:
        at_ends = curves.drop(columns="examples_seen", errors="ignore")  # as papers have them
        at_ends = at_ends.drop_duplicates(["run_id", "epoch"], keep="last")
        frame = curve_points(runs, at_ends, figure.metric.name)
        first = figure.zoom_from * float(runs["epochs"].max())
        frame = frame[frame["epoch"] > first].reset_index(drop=True)
        note = reading_note_of_curves(summary, has_bands=len(names) <= MOST_BANDS)
        note += _draw_curves(sheet, frame, figure, names)
    for (height, source), linestyle in zip(paper.lines, (":", "--"), strict=False):
        if _is_comparable(paper, figure, runs):
            axes.axhline(height, color=style.GREY, linewidth=0.9, linestyle=linestyle, label=source)
    notes = [compared.about, note + _remarks(placed, figure, paper)]
    legend = "" if figure.is_final else _AXES[figure.along].label
    return sheet.finish(frame, _title(paper, figure, compared, runs), notes, legend)


@style.use_style()
def draw_optimizers(
    runs: pd.DataFrame, metric: Metric = ACCURACY, width: Width = "screen"
) -> Drawing:
    """The final metric against batch, a line per optimizer."""
    groups = limit2020.largest_group_by_optimizer(runs).groupby("optimizer")
    parts = [points(group, metric.name).assign(optimizer=name) for name, group in groups]
    frame = pd.concat(parts, ignore_index=True)
    has_diverged = bool(frame["num_diverged"].any())
    sheet = Sheet.new(width, strips=[has_diverged])
    (axes,) = sheet.panels
    batches = sorted(int(b) for b in frame["global_batch"].unique())
    style.batch_axis(axes, batches)
    if has_diverged:
        sheet.add_strip(0, DIVERGED)
    marks = style.named_marks(sorted(frame["optimizer"].unique()))
    lines = frame.groupby(["optimizer", "warmup_epochs", "lr_rule"])
    for i, ((name, *_), line) in enumerate(lines):
        lane = Lane(batches, index=i, count=lines.ngroups)
        draw_points(
            axes, line, "global_batch", mark=marks[str(name)], lane=lane, label=str(name),
            strip=sheet.strips.get(0),
        )  # fmt: skip
    note = reading_note(frame) + limit_values([axes], frame, metric)
    sheet.label(BATCH, style.value_label(metric))
    first = runs.iloc[0]
    title = f"{limit2020.CITATION}: optimizers up to the full batch: {first['data']}, "
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    return sheet.finish(frame, title + str(first["model"]), [about, note], "optimizer")


def _line_labels(runs: pd.DataFrame, along: str) -> dict[float | str, str]:
    """Labels of lines or places; for a twin, with the paper's number in brackets."""
    column = _AXES[along].column
    theirs = {"batch": "paper_batch", "warmup": "paper_warmup", "rule": "lr_rule"}[along]
    pairs = runs.drop_duplicates(column).sort_values(column)
    if along == "rule":
        return {rule: str(rule) for rule in pairs[column]}
    names = {ours: f"{ours:,.12g}" for ours in pairs[column]}
    if runs["is_twin"].any():
        for ours, there in zip(pairs[column], pairs[theirs], strict=True):
            names[ours] += f" [{there:,.12g}]" if ours != there else ""
    return names


def _draw_final(
    sheet: Sheet, frame: pd.DataFrame, figure: PaperFigure, names: dict[float | str, str]
) -> str:
    """Draw a line of points, or marks of rules; return a note if the axis cuts bars."""
    (axes,), axis = sheet.panels, _AXES[figure.along]
    (mark,), places = style.ordered_marks(1), [*names]
    if figure.along == "rule":
        rules = list(figure.rules)
        mark, places = replace(mark, linestyle=" "), [*range(len(rules))]
        axes.set_xticks(places, rules)
        axes.set_xlim(-0.5, len(rules) - 0.5)
        frame = frame.assign(lr_rule=frame["lr_rule"].map(rules.index))
    else:
        axis.draw(axes, places, [*names.values()])
    lane = Lane([float(place) for place in places], axis.scale)
    if frame["num_diverged"].any():
        sheet.add_strip(0, DIVERGED)
    strip = sheet.strips.get(0)
    draw_points(axes, frame, axis.column, mark=mark, lane=lane, label="these runs", strip=strip)
    sheet.label(axis.label, style.value_label(figure.metric))
    return limit_values(sheet.panels, frame, figure.metric)


def _draw_curves(
    sheet: Sheet, frame: pd.DataFrame, figure: PaperFigure, names: dict[float | str, str]
) -> str:
    """Draw a line per name; return a note if the axis cuts the first epochs."""
    (axes,) = sheet.panels
    column = _AXES[figure.along].column
    marks: list[Mark] = (
        [*style.named_marks(map(str, names)).values()]
        if figure.along == "rule"
        else style.ordered_marks(len(names))
    )
    has_bands = len(names) <= MOST_BANDS
    for (level, label), mark in zip(names.items(), marks, strict=True):
        line = frame[frame[column] == level]
        draw_curve(axes, line, mark=mark, label=label, has_band=has_bands)
    style.epoch_axis(axes)
    sheet.label("epoch", style.value_label(figure.metric))
    return limit_to_end(sheet.panels, frame, figure.metric)


def _draw_published(axes: Axes, paper: Paper, figure: PaperFigure, runs: pd.DataFrame) -> None:
    """Draw published means and spreads, if the runs were trained in the same way."""
    shown = paper.published_in(figure)
    is_comparable = _is_comparable(paper, figure, runs)
    if not shown or not is_comparable or paper.protocol_differences(runs):
        return
    x = [getattr(p.point, figure.along) for p in shown]
    x = [list(figure.rules).index(rule) for rule in x] if figure.along == "rule" else x
    heights, spreads = [p.accuracy for p in shown], [p.spread for p in shown]
    axes.errorbar(
        x, heights, spreads, fmt="D", color=style.GREY, markerfacecolor="none", markersize=4,
        elinewidth=0.7, capsize=2, label=PUBLISHED_BY,
    )  # fmt: skip
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, *heights), max(top, *heights))
    if figure.along == "batch":
        batches = {p.point.batch for p in shown} & set(figure.batches)
        style.batch_axis(axes, sorted(batches | set(runs["global_batch"])))


def _is_comparable(paper: Paper, figure: PaperFigure, runs: pd.DataFrame) -> bool:
    return figure.metric == ACCURACY and paper.is_protocol_of(runs)


def _title(paper: Paper, figure: PaperFigure, compared: ComparableRuns, runs: pd.DataFrame) -> str:
    words = figure.title.replace("Accuracy", style.title_word(figure.metric))
    words = words.replace("accuracy", figure.metric.word)
    if runs["is_twin"].any():
        for ours, there in runs[["global_batch", "paper_batch"]].drop_duplicates().to_numpy():
            words = words.replace(f"batch {there:,}", f"batch {ours:,} [{there:,}]")
    title = f"{paper.citation}, {figure.name.replace('_', ' ')}: {words}"
    is_there = paper.is_protocol_of(compared.runs)
    return title if is_there else f"{title}; here on {compared.title}"


def _remarks(placed: pd.DataFrame, figure: PaperFigure, paper: Paper) -> str:
    note = ""
    if figure.last_epochs > 1:
        note += f" A run's value is its median over the last {figure.last_epochs} epochs."
    if placed["is_twin"].any():
        note += (
            " A small twin; in brackets: the paper's batch of the same share of the training set, "
            "and its warmup of the same share of the training."
        )
    if gaps := missing_points(placed, figure):
        note += f" Not run: {len(gaps)} of {len(figure.points())} points."
    if figure.is_final and paper.published_in(figure) and _is_comparable(paper, figure, placed):
        unlike = paper.protocol_differences(placed)
        note += f" {PUBLISHED_BY}'s points: mean and standard deviation over 5 runs"
        note += f"; not drawn here: {'; '.join(unlike)}." if unlike else paper.published_remark
    return note
