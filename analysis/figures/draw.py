"""The figures of a sweep, drawn and saved, the most telling first."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from analysis.figures.curves import draw_per_epoch
from analysis.figures.final import (
    draw_against_batch,
    draw_against_warmup,
    draw_best_settings,
    draw_heat_map,
)
from analysis.figures.over_training import draw_best_batches, draw_lengths
from analysis.figures.points import split_by_rule
from analysis.figures.responses import draw_best_rates, draw_best_warmups
from analysis.figures.sheet import Drawing, save
from analysis.figures.style import Width
from analysis.figures.target import best_reached, draw_steps_to_target
from analysis.stats.best_setting import along_best
from analysis.stats.to_target import to_target
from analysis.tables.comparable_runs import (
    AXES,
    ComparableRuns,
    file_name,
    group_comparable,
    stored_configs,
)
from analysis.tables.metric import Measured
from analysis.tables.settings import find_rate_key, read_rates, runs_of_lengths
from analysis.tables.validity import doubts
from analysis.tables.which_runs import LENGTHS

#: Kinds of figures, which their names begin with, the most telling first.
_KINDS = (
    "vs_length", "best_batches", "vs_batch_best", "per_epoch_best", "steps_to_target", "best_rates",
    "best_warmups", "vs_batch", "vs_warmup", "by_batch_and_warmup", "per_epoch",
)  # fmt: skip

#: A kind, the rest of the name, and what draws it.
_Figure = tuple[str, str, Callable[[], Drawing | None]]


def draw_all(
    measured: Measured, folder: Path, width: Width = "screen", target: float | None = None,
    most: int | None = None,
) -> Iterator[Path | str]:  # fmt: skip
    """Draw each batch at its best setting, if groups differ in it, and every comparable group.

    Nothing is drawn of a single point. Without a target there is no figure of steps to it.

    Returns:
        The files, of at most so many figures, the most telling; and in words what is left out.
    """
    word, drawn = file_name(measured.metric.word), 0
    figures = _figures(measured, width, target)
    order = sorted(figures, key=lambda figure: (_KINDS.index(figure[0]), figure[1] != ""))
    for kind, ending, draw in order:
        if drawn == most:
            yield f"These are the {most} most telling figures; --all draws the others too."
            return
        if drawing := draw():
            drawn += 1
            yield from save(drawing, folder, f"{word}_{kind}{ending}")
    if not drawn:
        yield "Nothing to draw: no runs that may be compared differ in batch, warmup or rate."


def add_doubts(compared: ComparableRuns) -> ComparableRuns:
    """Comparable runs that say their rate and steps, and which points are not to be compared."""
    parts = compared.about, _describe_training(compared.runs), doubts(compared.runs)
    return replace(compared, about=". ".join(filter(None, parts)))


def _describe_training(runs: pd.DataFrame) -> str:
    """The rate of runs as it was typed, its rule, and the steps at the ends of the batches."""
    configs = stored_configs(runs)
    key = find_rate_key(runs, configs)
    rates, rules = sorted({*read_rates(runs, configs, key).dropna()}), sorted({*runs["lr_rule"]})
    shown = " to ".join(f"{rate:.4g}" for rate in dict.fromkeys([*rates[:1], *rates[-1:]]))
    parts = [f"{key} {shown}" * bool(rates), f"lr_rule={','.join(rules)}"]
    steps = runs.groupby("global_batch")["steps"].max().dropna().iloc[[0, -1]]
    each = {f"{taken:,.0f} steps at batch {batch:,}": None for batch, taken in steps.items()}
    return ", ".join([*filter(None, parts), *each])


def _figures(measured: Measured, width: Width, target: float | None) -> Iterator[_Figure]:
    """All that can be drawn of more than one point."""
    runs, metric = measured.runs_with_metric, measured.metric
    best = along_best(runs, metric)
    if best and _count(best[0], "global_batch") > 1:
        compared = add_doubts(best[0])
        draw = partial(draw_best_settings, compared, best[1], metric, width=width)
        yield "vs_batch_best", "", draw
        about = f"{compared.about}. {best[1].caption}"
        yield from _curves_of(replace(compared, about=about), measured, width, "per_epoch_best")
    lengths, columns = runs_of_lengths(runs)
    if len(lengths["data_seen"].unique()) > 1:
        title, _, _ = group_comparable(lengths, LENGTHS)[0].title.rpartition(", ")  # one length
        yield "vs_length", "", partial(draw_lengths, lengths, columns, title, metric, width=width)
        if len(lengths["global_batch"].unique()) > 1:
            these = lengths, columns, measured.curves, metric
            yield "best_batches", "", partial(draw_best_batches, *these, width=width)
    axes = (*AXES, "base_lr", find_rate_key(runs))
    for compared in map(add_doubts, group_comparable(runs, axes)):
        if _count(compared, "peak_lr") > 1:
            ending = f"-{compared.name}" if compared.name else ""
            yield "best_rates", ending, partial(draw_best_rates, compared, metric, width=width)
    for compared in map(add_doubts, group_comparable(runs)):
        yield from _figures_of(compared, measured, width, target)


def _count(compared: ComparableRuns, column: str) -> int:
    return compared.runs[column].nunique()


def _figures_of(
    compared: ComparableRuns, measured: Measured, width: Width, target: float | None
) -> Iterator[_Figure]:
    metric, ending = measured.metric, f"-{compared.name}" if compared.name else ""
    has_batches = _count(compared, "global_batch") > 1
    has_warmups = _count(compared, "warmup_epochs") > 1
    of_all = {
        "best_warmups": (draw_best_warmups, has_warmups),
        "vs_batch": (draw_against_batch, has_batches),
        "vs_warmup": (draw_against_warmup, has_warmups),
        "by_batch_and_warmup": (draw_heat_map, has_batches and has_warmups),
    }
    for kind, (draw, is_possible) in of_all.items():
        if is_possible:
            yield kind, ending, partial(draw, compared, metric, width=width)
    yield from _curves_of(compared, measured, width, "per_epoch")
    for group in split_by_rule(compared):
        of_rule = f"-{group.name}" if group.name else ""
        if target is not None and _count(group, "global_batch") > 1:
            goal = f"{metric.word} {metric.shown(target)}"
            reached = best_reached(to_target(group.runs, measured.curves, target, metric))
            about = f"{group.title}; of each batch and seed the best warmup"
            about = ". ".join(filter(None, [about, doubts(group.runs)]))
            draw = partial(draw_steps_to_target, reached, goal, about, width=width)
            yield "steps_to_target", of_rule, draw


def _curves_of(
    compared: ComparableRuns, measured: Measured, width: Width, kind: str
) -> Iterator[_Figure]:
    """Curves of each rule."""
    for group in split_by_rule(compared):
        of_group = measured.curves[measured.curves["run_id"].isin(group.runs["run_id"])]
        if of_group["run_id"].duplicated().any():
            draw = partial(draw_per_epoch, group, measured.curves, measured.metric, width=width)
            yield kind, f"-{group.name}" if group.name else "", draw
