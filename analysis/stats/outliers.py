"""Seeds that lie so far from the others of their point that an estimate is given without them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.stats.replicates import Estimate, Replicates, format_interval

#: A seed is wild if it lies farther from the others of its point than this many spreads.
WILD = 10

#: Degrees of freedom of the others' spread below which no seed is called wild.
_FEWEST_FREE = 3

#: How a column of a point is said.
_PLACES = {
    "global_batch": "{:,.0f}",
    "paper_batch": "{:,.0f}",
    "warmup_epochs": "warmup {:g}",
    "paper_warmup": "warmup {:g}",
    "base_lr": "base_lr {:.3g}",
    "peak_lr": "rate {:.3g}",
    "lr_rule": "lr_rule={}",
    "step": "step {:,.0f}",
}


def find_wild(cells: Replicates, fewest_others: int = 2) -> list[tuple[int, int, float]]:
    """Seeds that lie ten spreads or more from the others of their point, which has so many.

    The spread is the largest of three: that of the point's other seeds, which two or three tell
    poorly; the median over the points; and that of a value anywhere in the resolution.

    Returns:
        the place of the point, that of the value, and its distance from the others' mean [spreads].
    """
    found: list[tuple[int, int, float]] = []
    if (cells.counts - 1).sum() - 1 < _FEWEST_FREE:
        return found
    measured = cells.values  # noqa: PD011
    spreads = [v.std(ddof=1) if len(v) > 1 else np.nan for v in measured]
    least = cells.resolutions / np.sqrt(12)
    for i, values in enumerate(measured):
        if len(values) <= fewest_others:
            continue
        j = int(np.abs(values - np.median(values)).argmax())
        others = np.delete(values, j)
        own = float(others.std(ddof=1))
        spread = max(own, float(np.nanmedian([own, *spreads[:i], *spreads[i + 1 :]])), least[i])
        distance = abs(float(values[j] - others.mean()))
        if distance > WILD * spread > 0:
            found.append((i, j, distance / spread))
    return found


def drop_wild(
    runs: pd.DataFrame, by: Sequence[str], measure: str, fewest_others: int = 2
) -> tuple[pd.DataFrame, str]:
    """The runs without wild seeds, and these in words; none if there are none.

    Without the column `seed` the runs of a point are numbered from 0.
    """
    by = [*by]
    known = runs if "seed" in runs else runs.assign(seed=runs.groupby(by).cumcount())
    cells = Replicates.from_runs(known, by, measure)
    is_wild, words = pd.Series(data=False, index=runs.index), list[str]()
    for i, j, distance in find_wild(cells, fewest_others):
        point, seed = cells.points.iloc[i], cells.seeds[i][j]
        is_wild |= (known[by] == point).all(axis=1) & (known["seed"] == seed)
        where = ", ".join(_PLACES.get(name, "{}").format(point[name]) for name in by)
        words.append(
            f"seed {seed:g} at {where} is {distance:,.0f} standard deviations off the others"
        )
    return runs[~is_wild], " and ".join(words)


def add_without(found: Estimate, wild: str, without: Estimate) -> Estimate:
    """An estimate whose note names wild seeds and says what it is without them."""
    more = f"; {without.note}" if without.note not in found.note else ""
    plain = "unknown" if np.isnan(without.value) else format_interval(replace(without, note=""))
    plain = "beyond what was run" if np.isinf(without.value) else plain
    notes = f"{wild}; without, {plain}{more}", found.note
    return replace(found, note="; ".join(filter(None, notes)), without=without)
