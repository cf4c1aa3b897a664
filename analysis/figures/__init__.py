"""Figures of any sweep: frames first, then ink."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.figures.curves import draw_per_epoch
from analysis.figures.final import draw_against_batch, draw_against_warmup
from analysis.figures.save import save
from analysis.figures.style import WORDS, measure_of
from analysis.tables.comparable_runs import studies


def draw_all(runs: pd.DataFrame, curves: pd.DataFrame, folder: Path) -> Iterator[Path]:
    """Draw the figures of every study among the runs.

    Args:
        runs: one row per run.
        curves: one row per run and epoch.
        folder: where the figures go.

    Yields:
        The files, as they are written.
    """
    for study in studies(runs):
        ending = f"-{study.name}" if study.name else ""
        word = WORDS[measure_of(study.runs)].lower()
        drawn = {
            f"{word}_vs_batch": draw_against_batch(study),
            f"{word}_vs_warmup": draw_against_warmup(study),
            f"{word}_per_epoch": draw_per_epoch(study, curves),
        }
        for name, (figure, frame) in drawn.items():
            yield from save(figure, frame, folder, name + ending)
