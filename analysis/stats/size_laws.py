"""The best batch and rate at each size of model and data, and how they grow with both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import pandas as pd
from scipy import stats

from analysis.stats.replicates import LEVEL, Array, Estimate
from analysis.tables.any_table import NAMES

#: How far behind the best of their cell runs may be that tell where it is [fraction of the best].
WINDOWS = (0.005, 0.01, 0.02, 0.04, 0.08)
#: How many times the noise must be in a window; narrower ones than this hide it.
_NOISES, _SHOWN = 6, 0.01
#: What the largest batch may lose beside the best [fraction of the best].
SHARE = 0.0025
#: Runs beyond as many as a surface has coefficients, and the fewest of a cell.
_SPARE, FEWEST = 2, 8
#: Cells of which fewer have the interval of the parabolas about the cubics' value too.
_FEW_CELLS = 6
#: Of the search of a top: steps, how near it must come, and a bend that is none.
_STEPS, _NEAR, _FLAT = 50, 1e-4, 1e-12
#: The chance at most that runs of which no setting matters are taken for others.
_UNLIKELY = 0.001
#: Correlation of log size and log data above which only one of them is told.
_TOGETHER = 0.98


def find_bests(
    runs: pd.DataFrame, cell: Sequence[str], settings: Sequence[str], window: float, degree: int = 2
) -> tuple[pd.DataFrame, list[str], float]:
    """The top of a surface in the logarithms of the settings, through a cell's runs near its best.

    Near are the points within the window, and as many as a surface of this degree needs. Cells in
    which it has no top, or one beyond the settings that were run, are left out.

    Uses `behind`, what a run is behind the best of its cell, the cells' columns and the settings.

    Returns:
        a row per cell: its columns, `num_runs`, the best of each setting, `power` (of the batch,
        with which the best rate grows there) and `largest` (the batch up to which no more than
        `SHARE` is lost); cells that are left out, in words; what a run is off the surfaces.
    """
    rows, left_out, width = list[dict[str, float]](), list[str](), len(settings)
    squares, free, fewest = 0.0, 0, comb(width + degree, degree) + _SPARE
    for _, own in runs.groupby(list(cell)):
        row = {c: float(own[c].iloc[0]) for c in cell}
        here = ", ".join(f"{NAMES[c]} {v:.4g}" for c, v in row.items())
        x, behind = np.log(own[list(settings)].to_numpy(float)), own["behind"].to_numpy(float)
        points = own.groupby(list(settings))["behind"]  # by the means of seeds, not the lucky ones
        means = points.mean() - points.mean().min()
        of_run = (points.transform("mean") - points.mean().min()).to_numpy(float)
        near = of_run <= max(window, float(np.sort(means)[:fewest][-1]))
        ends, top, why = (x.min(axis=0), x.max(axis=0)), x[near].mean(axis=0), "no best is seen"
        bend = np.eye(width)
        for _ in range(_STEPS if len(own) >= fewest else 0):
            design = surface_columns(x[near] - top, degree)
            found = np.linalg.lstsq(design, behind[near], rcond=None)[0]
            bend = np.zeros((width, width))
            bend[np.triu_indices(width)] = found[width + 1 : width + 1 + width * (width + 1) // 2]
            bend += bend.T
            if np.linalg.eigvalsh(bend)[0] <= _FLAT:
                break
            step = np.linalg.solve(bend, found[1 : width + 1])
            top = np.clip(top - step, *ends)
            if not ((ends[0] < top) & (top < ends[1])).all():
                why = "the best is at an end of what was run"
            elif np.abs(step).max() < _NEAR:
                squares += float(((behind[near] - design @ found) ** 2).sum())
                free, why = free + len(design) - design.shape[1], ""
                break
        if why:
            left_out.append(f"{here}: {why}")
            continue
        row |= {"num_runs": float(near.sum()), **dict(zip(settings, np.exp(top), strict=True))}
        if "global_batch" in settings:  # along the best of the other setting
            room = np.sqrt(2 * SHARE * np.linalg.inv(bend)[0, 0])
            row["largest"] = row["global_batch"] * np.exp(room)
        rows.append(row | ({"power": -bend[0, 1] / bend[1, 1]} if width > 1 else {}))
    return pd.DataFrame(rows), left_out, float(np.sqrt(squares / max(free, 1)))


def surface_columns(x: Array, degree: int = 2) -> Array:
    """Of a polynomial in the columns of x, shape (runs, settings), in the order of degrees."""
    terms = (combinations_with_replacement(x.T, k) for k in range(degree + 1))
    return np.column_stack([np.prod([np.ones(len(x)), *t], axis=0) for k in terms for t in k])


def settings_matter(runs: pd.DataFrame, cell: Sequence[str], settings: Sequence[str]) -> bool:
    """Whether `behind` depends on the settings: F test of its ranks within the cells."""
    sums, counts = np.zeros(2), np.zeros(2)
    for _, own in runs.groupby(list(cell)):
        ranks = stats.rankdata(own["behind"])
        design = surface_columns(np.log(own[list(settings)].to_numpy(float)))
        if (rank := int(np.linalg.matrix_rank(design))) < len(own) - 1:
            fitted = design @ np.linalg.lstsq(design, ranks, rcond=None)[0]
            sums += [((fitted - ranks.mean()) ** 2).sum(), ((ranks - fitted) ** 2).sum()]
            counts += [rank - 1, len(own) - rank]
    if not counts.all():
        return False
    ratio = sums[0] / counts[0] / max(float(sums[1] / counts[1]), 1e-300)
    return bool(stats.f.sf(ratio, *counts) < _UNLIKELY)


@dataclass(frozen=True, slots=True)
class Laws:
    """Powers with which the best settings grow.

    Attributes:
        bests: of `find_bests`, as the cells that are left out.
        left_out: in words.
        window: the chosen one.
        powers: by name, such as `best_batch_data`. Where both settings vary, those of the rate are
            at a given batch, and `best_rate_data along` is that along the best batch.
        by_window: a row per `law` and `window`: `value`, `low`, `high`.
        note: what limits them.
    """

    bests: pd.DataFrame
    left_out: list[str]
    window: float
    powers: dict[str, Estimate]
    by_window: pd.DataFrame
    note: str


def fit_laws(runs: pd.DataFrame, cell: Sequence[str], settings: Sequence[str]) -> Laws | None:
    """Laws of the best settings over size and data; None if no window has enough cells.

    The window is the first that is six times the noise. An interval is Student's from
    the cells' scatter, with the larger of the usual variance and one for unequal spreads (HC3), and
    contains that of tops of cubics (of few cells: as wide a one): how far they depend on the shape.
    The two powers of a setting,
    of size and of data, hold together at 95 %.

    Source:
        MacKinnon & White 1985, Journal of Econometrics 29, 305-325 (HC3).
    """
    given, note = [c for c in cell if len(runs[c].unique()) > 1], ""
    both = np.log(runs[given].drop_duplicates().to_numpy(float))
    if len(given) > 1 and abs(np.corrcoef(both.T)[0, 1]) > _TOGETHER:
        given, note = given[-1:], "size and data grow together: the power is that of both"
    found = {w: find_bests(runs, cell, settings, w) for w in WINDOWS}
    fits = {w: _fit_powers(bests, given, settings) for w, (bests, *_) in found.items()}
    known = [w for w in WINDOWS if fits[w]]
    if not known or not given:
        return None
    is_fit = (w for w in known if max(found[w][2], found[_SHOWN][2]) <= w / _NOISES)
    window = next(is_fit, known[-1])
    cubic = find_bests(runs, cell, settings, window, degree=3)[0]
    bent = _fit_powers(cubic, given, settings) or fits[window]
    powers = dict[str, Estimate]()
    for name, e in fits[window].items():
        other, half = bent[name], e.high - e.value
        low, high = other.low, other.high
        if len(found[window][0]) < _FEW_CELLS:  # t on one degree of freedom would say nothing
            low, high = other.value - half, other.value + half
        powers[name] = replace(e, low=min(e.low, low), high=max(e.high, high))
    rows = [(name, f"{100 * w:g} %", e.value, e.low, e.high)
            for w in known for name, e in fits[w].items()]  # fmt: skip
    by_window = pd.DataFrame(rows, columns=["law", "window", "value", "low", "high"])
    return Laws(*found[window][:2], window, powers, by_window, note)


def _fit_powers(
    table: pd.DataFrame, given: Sequence[str], settings: Sequence[str]
) -> dict[str, Estimate]:
    """All powers by the bests of cells; none if there are too few."""
    if len(table) < len(given) + 2:
        return {}
    x, has_both = np.log(table[list(given)].to_numpy(float)), "power" in table
    logs = {s: np.log(table[s].to_numpy(float)) for s in settings}
    powers = {
        f"best_{NAMES[s]}_{NAMES[c]}{' along' if has_both and s == 'peak_lr' else ''}": e
        for s in settings for c, e in zip(given, regress(x, logs[s]), strict=True)
    }  # fmt: skip
    if not has_both:
        return powers
    power = regress(x[:, :0], table["power"].to_numpy(float))[0]
    batch = logs["global_batch"] - logs["global_batch"].mean()
    for c, e in zip(given, regress(x, logs["peak_lr"] - power.value * batch), strict=True):
        moved = powers[f"best_batch_{NAMES[c]}"].value
        half = float(np.hypot(e.high - e.value, moved * (power.high - power.value)))
        powers[f"best_rate_{NAMES[c]}"] = replace(e, low=e.value - half, high=e.value + half)
    return powers | {"best_rate_batch": power}


def regress(x: Array, y: Array) -> list[Estimate]:
    """Coefficients of y on columns of x, or without any its mean; intervals as in `fit_laws`."""
    count, width = x.shape
    design = np.column_stack([np.ones(count), x - x.sum(axis=0) / count])
    inverse = np.linalg.pinv(design.T @ design)
    found, free = inverse @ design.T @ y, count - width - 1
    rest = y - design @ found
    spare = np.clip(1 - np.einsum("ij,jk,ik->i", design, inverse, design), 1e-3, 1)
    unequal = np.diag(inverse @ (design.T * (rest / spare) ** 2) @ design @ inverse)
    errors = np.sqrt(np.maximum(np.diag(inverse) * (rest @ rest) / free, unequal))
    half = stats.t.ppf(1 - (1 - LEVEL) / 2 / max(width, 1), free) * errors  # Bonferroni
    method = "least squares over cells; 95 % t intervals from their scatter, of all together"
    pairs = list(zip(found.tolist(), half.tolist(), strict=True))[min(width, 1) :]
    return [Estimate(value, value - h, value + h, 1, method) for value, h in pairs]
