"""A figure on disk: PNG, PDF, SVG, and the frame that it draws."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")


def save(figure: Figure, frame: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Write a figure in every format, and its frame beside it as CSV.

    The folder is made if absent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=160)
    table = folder / f"{name}.csv"
    frame.to_csv(table, index=False)
    return [*paths, table]
