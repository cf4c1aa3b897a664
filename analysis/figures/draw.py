"""Every figure of a sweep, drawn and saved."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from analysis.figures.curves import draw_per_epoch
from analysis.figures.final import (
    draw_against_batch,
    draw_against_warmup,
    draw_best_settings,
    draw_heat_map,
)
from analysis.figures.points import split_by_rule
from analysis.figures.responses import draw_best_rates, draw_best_warmups
from analysis.figures.sheet import Drawing, save
from analysis.figures.style import Width
from analysis.figures.target import best_reached, draw_steps_to_target
from analysis.stats.best_setting import along_best
from analysis.stats.to_target import to_target
from analysis.tables.comparable_runs import AXES, ComparableRuns, file_name, group_comparable
from analysis.tables.metric import Measured
from analysis.tables.validity import doubts


def draw_all(
    measured: Measured, folder: Path, width: Width = "screen", target: float | None = None
) -> Iterator[Path]:
    """Draw each batch at its best setting, if groups differ in it, and every comparable group.

    Without a target there is no figure of steps to it.
    """
    word = file_name(measured.metric.word)
    runs = measured.runs_with_metric
    if best := along_best(runs, measured.metric):
        drawing = draw_best_settings(add_doubts(best[0]), best[1], measured.metric, width=width)
        yield from save(drawing, folder, f"{word}_vs_batch_best")
    for group in group_comparable(runs):
        for name, drawing in _drawings(add_doubts(group), measured, width, target):
            yield from save(drawing, folder, f"{word}_{name}")
    for compared in group_comparable(runs, (*AXES, "base_lr")):
        if drawing := draw_best_rates(add_doubts(compared), measured.metric, width=width):
            ending = f"-{compared.name}" if compared.name else ""
            yield from save(drawing, folder, f"{word}_best_rates{ending}")


def add_doubts(compared: ComparableRuns) -> ComparableRuns:
    """Comparable runs that say of themselves which of their points are not to be compared."""
    about = ". ".join(filter(None, [compared.about, doubts(compared.runs)]))
    return replace(compared, about=about)


def _drawings(
    compared: ComparableRuns, measured: Measured, width: Width, target: float | None
) -> Iterator[tuple[str, Drawing]]:
    """The figures of comparable runs, by the rest of their names."""
    metric, ending = measured.metric, f"-{compared.name}" if compared.name else ""
    yield f"vs_batch{ending}", draw_against_batch(compared, metric, width=width)
    if len({*compared.runs["warmup_epochs"]}) > 1:
        yield f"vs_warmup{ending}", draw_against_warmup(compared, metric, width=width)
    for group in split_by_rule(compared):
        name = f"per_epoch-{group.name}" if group.name else "per_epoch"
        yield name, draw_per_epoch(group, measured.curves, metric, width=width)
    if compared.runs["global_batch"].nunique() > 1 and compared.runs["warmup_epochs"].nunique() > 1:
        yield f"by_batch_and_warmup{ending}", draw_heat_map(compared, metric, width=width)
    if drawing := draw_best_warmups(compared, metric, width=width):
        yield f"best_warmups{ending}", drawing
    if target is None:
        return
    goal = f"{metric.word} {metric.shown(target)}"
    for group in split_by_rule(compared):
        reached = best_reached(to_target(group.runs, measured.curves, target, metric))
        about = f"{group.title}; of each batch and seed the best warmup"
        about = ". ".join(filter(None, [about, doubts(group.runs)]))
        if drawing := draw_steps_to_target(reached, goal, about, width=width):
            yield f"steps_to_target-{group.name}" if group.name else "steps_to_target", drawing
