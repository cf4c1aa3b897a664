"""The best batches of public tables, and a user's beside them."""

from pathlib import Path

import pandas as pd

from analysis.figures import style
from analysis.figures.sheet import Drawing, Sheet
from analysis.figures.style import Width

#: Our estimates, by `examples/atlas/study.py`: a row per `source`, `size` [parameters] and `data`
#: [tokens], with `batch` [tokens] and `rate`.
BESTS = Path(__file__).with_suffix(".csv")


@style.use_style()
def draw_beside(own: pd.DataFrame, name: str, width: Width = "screen") -> Drawing:
    """Best batches against data: those of `BESTS`, and a user's as stars."""
    frame = pd.concat([pd.read_csv(BESTS), own.assign(source=name)], ignore_index=True)
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    groups = list(frame.groupby("source", sort=False))
    for (source, rows), mark in zip(groups, style.ordered_marks(len(groups)), strict=True):
        is_own = source == name
        shape, size = ("*", 9) if is_own else (mark.marker, 4)
        axes.plot(rows["data"], rows["batch"], shape, markersize=size, label=str(source),
                  color=style.DIVERGED if is_own else mark.color)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True)
    sheet.label("data [tokens]", "best batch [tokens]")
    note = (
        "Marks: the best batch of a size of model and data, at its best rate (docs/results/atlas)."
    )
    return sheet.finish(frame, "Best batch against data", [note])
