"""The best batches of public tables, and a user's beside them."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from analysis.figures import style
from analysis.figures.sheet import Drawing, Sheet
from analysis.figures.style import Width
from analysis.stats.replicates import LEVEL

#: Our estimates, by `examples/atlas/study.py`: a row per `source`, `size` [parameters] and `data`
#: [tokens], with `batch` [tokens] and `rate`.
BESTS = Path(__file__).with_suffix(".csv")


def place_beside(own: pd.DataFrame) -> pd.DataFrame:
    """Where each source has the best batch at the sizes and data of a user's bests.

    By least squares of log batch on log data and, if both have it, log size.

    Returns:
        a row per own best and source: `source`, `size`, `data`, `batch`, `there`, and the ends of
        the 95 % interval for one table more, `low` and `high`.
    """
    known, frames = pd.read_csv(BESTS), list[pd.DataFrame]()
    names = [c for c in ("data", "size") if c in own]
    for source, rows in known.groupby("source"):
        x, at = np.log(rows[names].to_numpy(float)), np.log(own[names].to_numpy(float))
        design = np.column_stack([np.ones(len(x)), x - (middle := x.mean(axis=0))])
        inverse = np.linalg.inv(design.T @ design)
        found = inverse @ design.T @ np.log(rows["batch"].to_numpy(float))
        free = len(x) - len(found)
        rest = np.log(rows["batch"].to_numpy(float)) - design @ found
        to = np.column_stack([np.ones(len(at)), at - middle])
        spread = 1 + np.einsum("ij,jk,ik->i", to, inverse, to)
        half = stats.t.ppf(0.5 + LEVEL / 2, free) * np.sqrt(rest @ rest / free * spread)
        ends = {"there": to @ found, "low": to @ found - half, "high": to @ found + half}
        placed = own[[*names, "batch"]].assign(source=source)
        frames.append(placed.assign(**{name: np.exp(value) for name, value in ends.items()}))
    return pd.concat(frames, ignore_index=True)


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
