"""Each batch at its best setting, chosen by all runs, and what choosing costs."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.answer import Answer
from analysis.stats.optimum import collect_points, near_best
from analysis.stats.replicates import Array, Replicates, make_rng
from analysis.stats.response import fit_response
from analysis.tables.comparable_runs import ComparableRuns, group_comparable
from analysis.tables.metric import Metric
from analysis.tables.settings import find_rate_key, group_settings
from analysis.tables.which_runs import ended_runs

_DRAWS = 1000

#: Settings whose grid `analysis next` extends, and the key that does it, if the rate has no other.
EXTENDED = {"warmup_epochs": "warmup", "peak_lr": "base_lr"}

_NAMES = {"peak_lr": "peak rate", "warmup_epochs": "warmup"}


Ends = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class BestSettings:
    """The runs of each batch at the setting that is best there.

    Attributes:
        runs: of the chosen settings.
        chosen: a row per batch, its setting.
        columns: of the settings that were tried.
        price: what choosing adds to the variance of each batch's mean.
        ends: by the batch, the settings that are at an end of three values or more that were tried,
            with the word for it: `lowest tried`.
        by_curve: by the batch, in words, what is not the setting with the best mean.
    """

    runs: pd.DataFrame
    chosen: pd.DataFrame
    columns: Sequence[str]
    price: Mapping[int, float] = field(default_factory=dict[int, float])
    ends: Ends = field(default_factory=dict[int, dict[str, str]])
    by_curve: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def words(self) -> str:
        """The chosen settings in a sentence; empty if nothing was tried."""
        each: list[str] = []
        for row in self.chosen.to_dict("records") if self.columns else ():
            shown = ", ".join(f"{_NAMES.get(name, name)} {row[name]:.3g}" for name in self.columns)
            each.append(f"{row['global_batch']:,.0f}: {shown}")
        return f"Each batch at its best setting: {'; '.join(each)}." if each else ""

    @property
    def caption(self) -> str:
        """The chosen settings, and which are at an end of what was tried."""
        return f"{self.words} {_describe_ends(self.ends)}".strip()

    def keep_chosen(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Of these runs, those at the chosen settings, and all of batches without one."""
        if not self.columns:
            return runs
        by = ["global_batch", *self.columns]
        keys = [pd.MultiIndex.from_frame(frame[by]) for frame in (runs, self.chosen)]
        without = ~runs["global_batch"].isin(self.chosen["global_batch"])
        return runs[keys[0].isin(keys[1]) | without]

    def keep_others(self, runs: pd.DataFrame, column: str) -> pd.DataFrame:
        """Of these runs, those that are at the chosen settings but for one of them."""
        by = ["global_batch", *(name for name in self.columns if name != column)]
        chosen = pd.MultiIndex.from_frame(self.chosen[by].drop_duplicates())
        return runs[pd.MultiIndex.from_frame(runs[by]).isin(chosen)]

    def describe(self, answer: Answer) -> Answer:
        """An answer that names the settings it is for, and those at an end of what was tried."""
        if not self.columns:
            return answer
        rows, ends = self.chosen, self.ends
        if is_of_batch := answer.name == "best_batch":
            rows = rows[rows["global_batch"] == answer.value]
            ends = {batch: own for batch, own in ends.items() if batch == answer.value}
        settings = {
            f"{row['global_batch']:.0f}": {_NAMES.get(c, c): row[c] for c in self.columns}
            for row in rows.to_dict("records")
        }
        at_end = list(dict.fromkeys(name for own in ends.values() for name in own))
        more = {"chosen": settings, "at_end_of_grid": [_NAMES.get(name, name) for name in at_end]}
        said = _describe_ends(ends) if not is_of_batch else ""
        if is_of_batch and answer.has_answer:
            each = [f"{batch:,} ({words})" for batch, words in self.by_curve.items()]
            said = f"{_BY_CURVE}: {'; '.join(each)}." if each else ""
        words = f"{answer.words} {said}".strip()
        answer = replace(answer, words=words, settings={**answer.settings, **more})
        if not {*at_end} & EXTENDED.keys() or (answer.next and not answer.has_answer):
            return answer
        return replace(answer, next="Extend the grid: sweeper analysis next names the runs.")


_BY_CURVE = "Taken by the curve through all batches, though another setting has a better mean"


def along_best(runs: pd.DataFrame, metric: Metric) -> tuple[ComparableRuns, BestSettings] | None:
    """The runs of each batch at its best setting, and how that was chosen.

    None unless the settings that were tried are those of several comparable groups. Batches of
    which no setting could be chosen are left out.
    """
    group, columns = group_settings(runs)
    if not columns or len(group_comparable(group.runs)) < 2:
        return None
    best = choose_settings(group.runs, columns, metric)
    runs = best.runs[best.runs["global_batch"].isin(best.chosen["global_batch"])]
    return (replace(group, runs=runs, name=""), best) if len(runs) else None


def _describe_ends(ends: Ends) -> str:
    """Which of the chosen settings are at an end of what was tried; empty if none is."""
    by_name: dict[str, list[str]] = {}
    for batch, own in ends.items():
        for name in own:
            by_name.setdefault(name, []).append(f"{batch:,}")
    words = "; ".join(f"{_NAMES.get(n, n)} at {', '.join(of)}" for n, of in by_name.items())
    return f"The best is at an end of what was tried: {words}." if words else ""


def choose_settings(runs: pd.DataFrame, columns: Sequence[str], metric: Metric) -> BestSettings:
    """Take each batch at the setting that one response for all batches puts highest.

    Settings at which a run diverged are not chosen, nor those of one seed where others have more,
    nor those whose mean is two errors behind another's. Where no such response fits, or none has
    three values at a batch, the highest mean decides.
    """
    if not columns:
        chosen = runs[["global_batch"]].drop_duplicates().sort_values("global_batch")
        return BestSettings(runs, chosen, ())
    by = ["global_batch", *columns]
    cells = Replicates.from_runs(runs, by, metric.name)
    if not cells.values:  # noqa: PD011
        return BestSettings(runs, cells.points, columns)
    lost = runs[runs["outcome"] == "diverged"].groupby(by).size()
    frame = cells.points.assign(mean=metric.sign * cells.means, count=cells.counts)
    named = cells.points.to_dict("records")
    fit, refit, variance = _smooth(cells, columns, metric, lost)
    is_usable = ~pd.MultiIndex.from_frame(frame[by]).isin(lost.index)
    is_usable &= (frame["count"] >= min(2, frame["count"].max())).to_numpy()
    batches, means = frame["global_batch"].to_numpy(), frame["mean"].to_numpy(float)
    error = np.sqrt(variance / frame["count"].to_numpy(float))
    places = [np.flatnonzero((batches == batch) & is_usable) for batch in np.unique(batches)]
    places = [place for place in places if len(place)]
    best = [int(_choose(means[:, None], fit[:, None], error, place)[0]) for place in places]
    chosen = frame.loc[best, by].reset_index(drop=True)
    tried = ended_runs(runs)
    ends = {int(r["global_batch"]): _ends_of(r, tried, columns) for r in chosen.to_dict("records")}
    tops = [place[means[place].argmax()] for place in places]
    by_curve = {
        int(batches[i]): f"{_say_typed(runs, named[i])}, not {_say_typed(runs, named[top])}"
        for i, top in zip(best, tops, strict=True)
        if means[top] > means[i]
    }
    truth = fit.copy()
    for place in places if refit is None else ():  # means scatter more than what they estimate
        middle, scatter = fit[place].mean(), max(float(fit[place].var()), 1e-300)
        shrunk = max(0.0, 1 - float((error[place] ** 2).mean()) / scatter)
        truth[place] = middle + shrunk * (fit[place] - middle)
    drawn = truth[:, None] + error[:, None] * make_rng().standard_normal((len(fit), _DRAWS))
    again = refit(drawn) if refit else drawn
    price: dict[int, float] = {}
    for place, i in zip(places, best, strict=True):
        taken = _choose(drawn, again, error, place)
        off = drawn[taken, np.arange(_DRAWS)] - truth[place].max()
        price[int(batches[i])] = max(0.0, float((off**2).mean() - error[i] ** 2))
    found = BestSettings(runs, chosen, columns, price, ends, by_curve)
    return replace(found, runs=found.keep_chosen(runs))


def _say_typed(runs: pd.DataFrame, setting: Mapping[Hashable, Any]) -> str:
    """A setting of a batch, with the rate as it was typed."""
    first = runs[(runs[[*setting]] == pd.Series(setting)).all(axis=1)].iloc[0]
    shown = {_NAMES.get(str(n), str(n)): v for n, v in setting.items() if n != "global_batch"}
    if "peak_lr" in setting and pd.notna(first["base_lr"]):
        shown[find_rate_key(runs)] = first["base_lr"]
        del shown[_NAMES["peak_lr"]]
    return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())


def _choose(means: Array, fit: Array, error: Array, place: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of a batch's points, in each column the one with the highest fit that is not behind.

    Behind is by two errors of the difference from the highest mean: what is measured to be worse is
    not chosen, whatever the response says.
    """
    top = place[means[place].argmax(axis=0)]
    behind = means[top, np.arange(means.shape[1])] - means[place]
    is_near = behind <= 2 * np.hypot(error[top], error[place][:, None])
    return place[np.where(is_near, fit[place], -np.inf).argmax(axis=0)]


#: What the least and the most of a setting are called.
SIDES = {
    "warmup_epochs": ("shortest tried", "longest tried"),
    "peak_lr": ("lowest tried", "highest tried"),
}


def _ends_of(
    row: Mapping[Hashable, Any], tried: pd.DataFrame, columns: Sequence[str]
) -> dict[str, str]:
    """Settings that are at an end of three or more that were tried at a batch, and at which."""
    of_batch, found = tried[tried["global_batch"] == row["global_batch"]], dict[str, str]()
    for name in columns:
        low, high = of_batch[name].min(), of_batch[name].max()
        least, most = SIDES.get(name, ("smallest tried", "largest tried"))
        if of_batch[name].nunique() < 3:
            continue
        if row[name] == high:
            found[name] = most
        elif row[name] == low and low > 0:  # no warmup is the end of its scale
            found[name] = least
    return found


#: From values of points, shape (points, draws), to the values that are chosen by.
Refit = Callable[[Array], Array]


def _smooth(
    cells: Replicates, columns: Sequence[str], metric: Metric, lost: pd.Series
) -> tuple[Array, Refit | None, float]:
    """What each point is chosen by, how that follows from the means, and a replicate's variance.

    Without a response that fits it is the mean itself, and nothing follows.
    """
    square, free = near_best(cells, metric.sign).scatter("global_batch")
    means, variance = metric.sign * cells.means, square / free if free else 0.0
    counts = cells.points.groupby("global_batch")[list(columns)].nunique().max()
    first = max(columns, key=lambda name: counts[name])
    others = [name for name in columns if name != first]
    found = collect_points(cells, first, metric.sign, lost, others)
    response = fit_response(found[0], make_rng(), 1) if found else None
    if not found or not response or response.is_rejected:
        return means, None, variance
    index, names = found[1], ["global_batch", first, *others]
    at = index.get_indexer(pd.MultiIndex.from_frame(cells.points[names].astype(float)))
    if (at < 0).any():  # a batch with too few settings for the response
        return means, None, variance

    def refit(values: Array) -> Array:
        every = np.repeat(response.fitter.points.measured[:, None], values.shape[1], axis=1)
        every[at] = values
        return response.refit(every)[at]

    return refit(means[:, None])[:, 0], refit, variance or response.shape.variance
