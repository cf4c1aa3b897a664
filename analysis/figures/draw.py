"""Every figure of a sweep, drawn and saved."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.figures import style
from analysis.figures.curves import draw_per_epoch
from analysis.figures.final import draw_against_batch, draw_against_warmup
from analysis.figures.save import save
from analysis.tables.comparable_runs import group_comparable


def draw_all(runs: pd.DataFrame, curves: pd.DataFrame, folder: Path) -> Iterator[Path]:
    """Draw the figures of every group of comparable runs."""
    for compared in group_comparable(runs):
        ending = f"-{compared.name}" if compared.name else ""
        word = style.WORDS[style.measure_of(compared.runs)].lower()
        drawn = {
            f"{word}_vs_batch": draw_against_batch(compared),
            f"{word}_vs_warmup": draw_against_warmup(compared),
            f"{word}_per_epoch": draw_per_epoch(compared, curves),
        }
        for name, (figure, frame) in drawn.items():
            yield from save(figure, frame, folder, name + ending)
