"""Every figure of a sweep, drawn and saved."""

from collections.abc import Iterator
from pathlib import Path

from analysis.figures import style
from analysis.figures.curves import draw_per_epoch
from analysis.figures.final import draw_against_batch, draw_against_warmup
from analysis.figures.save import save
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.metric import Measured


def draw_all(measured: Measured, folder: Path) -> Iterator[Path]:
    """Draw the figures of every group of comparable runs."""
    metric = measured.metric
    word = style.file_word(metric)
    for compared in group_comparable(measured.runs_with_metric):
        ending = f"-{compared.name}" if compared.name else ""
        drawn = {
            f"{word}_vs_batch": draw_against_batch(compared, metric),
            f"{word}_vs_warmup": draw_against_warmup(compared, metric),
            f"{word}_per_epoch": draw_per_epoch(compared, measured.curves, metric),
        }
        for name, (figure, frame) in drawn.items():
            yield from save(figure, frame, folder, name + ending)
