"""Replicates of points and the bootstrap over them; shares of runs and of validation sets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from sweeper.spec.sentences import several

Array = NDArray[np.float64]

DRAWS = 2000
LEVEL = 0.95

#: Note on values that do not show how far off another seed's would be.
NO_SPREAD = "every seed measured the same: no interval"

#: Values that differ by less than this fraction of their size are equal.
ROUNDING = 1e-9

#: A fit is rejected if the p value of its lack of fit is smaller than this.
REJECTED = 0.05

_SEED = 20170608


def are_equal(values: Array) -> bool:
    """Whether values differ by no more than rounding."""
    return bool(np.ptp(values) <= ROUNDING * abs(values.mean()))


def make_rng() -> np.random.Generator:
    """A generator that is always the same, so that the same runs give the same intervals."""
    return np.random.default_rng(_SEED)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: the estimate; nan if these runs do not give it.
        low: lower end of the interval; nan without an interval.
        high: upper end of the interval; nan without an interval.
        num_seeds: fewest replicates of a point that went in.
        method: how value and interval were computed.
        note: what limits it; empty if nothing does.
        without: the estimate without wild seeds; None if there are none.
    """

    value: float
    low: float
    high: float
    num_seeds: int
    method: str
    note: str = ""
    without: "Estimate | None" = None

    @classmethod
    def from_draws(
        cls, value: float, draws: "Array | None", num_seeds: int, method: str, *notes: str
    ) -> "Estimate":
        """An estimate with the percentile interval of its bootstrap draws; with none without draws.

        Notes that are empty are left out.
        """
        low, high = (np.nan, np.nan) if draws is None else percentile_interval(draws)
        return cls(float(value), low, high, num_seeds, method, "; ".join(filter(None, notes)))

    def widen(self, others: "Sequence[Array]") -> "Estimate":
        """With an interval that includes the value and the intervals of other fits' draws."""
        ends = [(self.low, self.high), *map(percentile_interval, others)]
        ends += [(self.value, self.value)] if self.has_interval and not np.isnan(self.value) else []
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        return replace(self, low=low, high=high)

    @property
    def has_interval(self) -> bool:
        """Whether both ends are numbers (an end may be infinite)."""
        return not (np.isnan(self.low) or np.isnan(self.high))


def format_estimate(estimate: Estimate, unit: str = "") -> str:
    """An estimate in words: value, interval, seeds and limits."""
    if np.isnan(estimate.value):
        return f"unknown: {estimate.note}"
    text = f"{format_interval(estimate, unit)}, {several(estimate.num_seeds, 'seed')} per point"
    return f"{text}; {estimate.note}" if estimate.note else text


def format_interval(estimate: Estimate, unit: str = "") -> str:
    """Value and interval of an estimate in words, to two digits of the interval's width."""
    if np.isnan(estimate.value):
        return f"unknown ({estimate.note})"
    ends = estimate.low, estimate.high
    finite = [v for v in (*ends, estimate.value) if np.isfinite(v)] if estimate.has_interval else []
    width = np.ptp(finite) if finite else 0.0
    value, low, high = (format_value(v, width) for v in (estimate.value, *ends))
    text = f"{value}{unit}"
    if ends == (-np.inf, np.inf):
        return f"{text} (95 %: anything; these runs do not determine it)"
    if not estimate.has_interval:
        return text
    between = f"{high} or less" if estimate.low == -np.inf else f"{low} to {high}"
    return f"{text} (95 %: {between.replace(' to inf', ' or more')})"


def format_value(value: float, width: float = 0.0) -> str:
    """A number to two digits of a width; to four of its own if the width tells more."""
    if np.isfinite(value) and width > 1e-3 * abs(value):
        digits = 1 - int(np.floor(np.log10(width)))
        return f"{round(value, digits) + 0.0:,.{max(digits, 0)}f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Replicates:
    """Points and the values of their replicates.

    Attributes:
        points: a row per point: what the replicates share.
        values: the values of each point's replicates.
        seeds: the seed of each value; none if they are not known.
        spacings: how far apart the places are at which each point's values were looked for; none
            if they are not known.
    """

    points: pd.DataFrame
    values: tuple[Array, ...]
    seeds: tuple[Array, ...] = ()
    spacings: tuple[float, ...] = ()

    @classmethod
    def from_runs(cls, runs: pd.DataFrame, by: Sequence[str], measure: str) -> "Replicates":
        """Collect the finished runs of each point.

        Runs of a seed count once, with their mean: rules that come to the same rate at a batch
        are the same training there, not replicates of each other. The spacing of a measure is in
        the column `MEASURE_spacing`, if there is one.
        """
        finished = runs[(runs["outcome"] == "finished") & runs[measure].notna()]
        spacing = f"{measure}_spacing"
        measures = [name for name in (measure, spacing) if name in finished]
        if "seed" in finished:
            seeds = finished.groupby([*by, "seed"], as_index=False, dropna=False)
            finished = seeds[measures].mean().sort_values("seed", kind="stable")
        groups = finished.groupby(list(by), sort=True)
        values = tuple(np.asarray(group, dtype=float) for _, group in groups[measure])
        known = groups["seed"] if "seed" in finished else ()
        seeds = tuple(np.asarray(group, dtype=float) for _, group in known)
        points = groups.size().reset_index()[list(by)]
        spacings = tuple(groups[spacing].mean()) if spacing in measures else ()
        return cls(points=points, values=values, seeds=seeds, spacings=spacings)

    def drop_single(self) -> "tuple[Replicates, str]":
        """Drop points with a single replicate, if any has more; and a note on it."""
        keep = self.counts > 1
        if keep.all() or not keep.any():
            return self, ""
        left_out = several(int((~keep).sum()), "point")
        return self.keep(keep), f"left out of the fit, with one finished seed: {left_out}"

    def keep(self, kept: "NDArray[np.bool_] | pd.Series") -> "Replicates":
        """Some of the points."""
        here = np.flatnonzero(kept)
        points = self.points.iloc[here].reset_index(drop=True)
        values, seeds = (tuple(of[i] for i in here if of) for of in (self.values, self.seeds))
        spacings = tuple(self.spacings[i] for i in here if self.spacings)
        return Replicates(points, values, seeds, spacings)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Replicates of each point."""
        return np.array([len(v) for v in self.values])

    @property
    def num_seeds(self) -> int:
        """Fewest replicates of a point."""
        return int(self.counts.min()) if self.values else 0

    @property
    def no_interval(self) -> str:
        """Why the seeds give no interval; empty if they do."""
        if self.num_seeds < 2:
            return "one seed: no interval"
        is_bare = not any(self.spacings) and all(map(are_equal, self.values))
        return NO_SPREAD if is_bare else ""

    @property
    def means(self) -> Array:
        """Mean of each point."""
        return np.array([v.mean() for v in self.values])

    @property
    def resolutions(self) -> Array:
        """How finely each point's values are known: its spacing, if that is known.

        Otherwise the least difference of two seeds of a point; of any two if those of a point
        agree.
        """
        if self.spacings:
            return np.array(self.spacings)
        for values in (self.values, (np.concatenate(self.values),)):
            gaps = np.concatenate([np.diff(np.sort(v)) for v in values])
            if len(gaps := gaps[gaps > ROUNDING * np.abs(self.means).max()]):
                return np.full(len(self.values), gaps.min())
        return np.zeros(len(self.values))

    @property
    def is_coarse(self) -> NDArray[np.bool_]:
        """Which points' means are known to the resolution, not to what their seeds say.

        Every seed measured the same, or they differ by less than the spacing lets one tell.
        """
        if not self.spacings:
            return np.array([are_equal(v) for v in self.values])
        return self._seed_variances <= self.resolutions**2 / 12

    @property
    def mean_variances(self) -> Array:
        """Variance of each mean; of a coarse point that of a value anywhere in the resolution."""
        return np.where(self.is_coarse, self.resolutions**2 / 12, self._seed_variances)

    @property
    def _seed_variances(self) -> Array:
        return np.array([0.0 if len(v) < 2 else v.var(ddof=1) / len(v) for v in self.values])

    def deviations(self, blocks: Sequence[NDArray[np.intp]]) -> tuple[list[Array], float]:
        """Deviations from each point's mean, scaled to the variance of the values.

        Inside a block of points that ran with the same seeds, the effect that a seed has on all of
        them is removed: it cancels in their differences. Where nothing is left, as of few seeds on
        a small validation set, it stays: their differences are not known without error.

        A block is the places of its points.

        Returns:
            The deviations of each point, and the degrees of freedom of all.
        """
        found = [(v - v.mean()) * np.sqrt(len(v) / (len(v) - 1)) for v in self.values]
        freedom = float((self.counts - 1).sum())
        for block in blocks:
            seeds = [tuple(self.seeds[i]) for i in block] if self.seeds else []
            if len(block) < 2 or len(set(seeds)) != 1:
                continue
            together = np.stack([found[i] for i in block])
            apart = (together - together.mean(axis=0)) * np.sqrt(len(block) / (len(block) - 1))
            if np.abs(apart).max() <= ROUNDING * np.abs(self.means).max():
                continue
            freedom -= len(seeds[0]) - 1
            for i, deviation in zip(block, apart, strict=True):
                found[i] = deviation
        return found, freedom

    def scatter(self, by: str) -> tuple[float, float]:
        """Sum of squares of the values about their points' means, and its degrees of freedom.

        The effect of a seed on all points with one value of `by` is removed, as in `deviations`.
        """
        several_values = self.keep(self.counts > 1)
        if not len(several_values.counts):
            return 0.0, 0.0
        place = several_values.points[by].to_numpy()
        blocks = [np.flatnonzero(place == value) for value in np.unique(place)]
        deviations, freedom = several_values.deviations(blocks)
        per_freedom = sum(float((d**2).sum()) * (len(d) - 1) / len(d) for d in deviations)
        return per_freedom / float((several_values.counts - 1).sum()) * freedom, freedom

    def resampled_means(
        self, rng: np.random.Generator, draws: int = DRAWS, freedom: float | None = None
    ) -> Array:
        """Bootstrap of the means: replicates drawn with replacement inside each point.

        Deviations from the point's mean are stretched by Student's factor, without which the
        spread of means over few replicates is underestimated. The mean of a coarse point is drawn
        from the resolution around it.

        `freedom` is that of the estimate's error; None for that of all points.

        Returns:
            Shape (draws, points).

        Raises:
            ValueError: if a point has a single replicate.

        Source:
            Davison & Hinkley 1997, Bootstrap Methods, section 3.2 (stratified resampling).
        """
        if self.num_seeds < 2:
            msg = "every point must have two or more seeds for an interval; got one."
            raise ValueError(msg)
        deviations, of_all = self.deviations([])
        factor = student_factor(of_all if freedom is None else freedom)
        columns = [
            mean + factor * rng.choice(values, size=(draws, len(values))).mean(axis=1)
            for mean, values in zip(self.means, deviations, strict=True)
        ]
        for i in np.flatnonzero(self.is_coarse):
            columns[i] = self.means[i] + self.resolutions[i] * rng.uniform(-0.5, 0.5, draws)
        return np.stack(columns, axis=1)


def stretch(count: int, freedom: float) -> float:
    """Factor on bootstrapped deviations, for few replicates.

    ``sqrt(n / (n - 1)) * t(freedom) / z``: the first because deviations are from the sample's
    own mean, the second because the spread itself is estimated.

    The degrees of freedom are those of the spread, over all points.

    Returns:
        The factor; 1 for many replicates.

    Source:
        Davison & Hinkley 1997, section 2.3 (n - 1); the Student factor at 95 % is ours.
    """
    return float(np.sqrt(count / (count - 1))) * student_factor(freedom)


def student_factor(freedom: float, level: float = LEVEL) -> float:
    """How much wider Student's interval is than the normal interval."""
    end = 0.5 + level / 2
    return float(stats.t.ppf(end, freedom) / stats.norm.ppf(end))


def percentile_interval(draws: Array, level: float = LEVEL) -> tuple[float, float]:
    """Ends of the central part of bootstrap draws; infinite draws count as such.

    A draw is nan if it has no value.

    Returns:
        Low and high; the whole line if more draws than the tails contain have no value.
    """
    tail = (1.0 - level) / 2.0
    if not len(draws) or np.isnan(draws).mean() > tail:
        return -np.inf, np.inf
    kept = draws[~np.isnan(draws)]
    low = np.quantile(kept, tail, method="lower")
    return float(low), float(np.quantile(kept, 1 - tail, method="higher"))


#: Validation sets that are smaller or larger are not recognised: accuracies of 0, 1 or a half
#: would be those of two examples [examples].
_FEWEST_EXAMPLES, _MOST_EXAMPLES = 10, 200_000


def wilson_interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Source:
        Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    interval = stats.binomtest(count, total).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def format_share(count: int, total: int) -> str:
    """A share of runs with its interval, such as "1 of 5 (4 to 62 %)"."""
    low, high = wilson_interval(count, total)
    return f"{count} of {total} ({100 * low:.0f} to {100 * high:.0f} %)"


def describe_diverged(runs: pd.DataFrame) -> str:
    """How many of the runs that ended diverged, which an estimate leaves out; empty if none."""
    lost, finished = ((runs["outcome"] == name).sum() for name in ("diverged", "finished"))
    if not lost:
        return ""
    return f"runs that diverged are not in the fit: {format_share(int(lost), int(lost + finished))}"


def validation_size(accuracies: Array) -> int | None:
    """The smallest validation set with a whole count for every accuracy; None if unknown.

    A divisor of the true number if all counts share it, which makes the binomial error larger.
    """
    sizes = np.arange(1, _MOST_EXAMPLES + 1)
    for share in pd.unique(accuracies[~np.isnan(accuracies)]):
        if not len(sizes):
            return None
        counts = sizes * share
        sizes = sizes[np.abs(counts - np.round(counts)) < 1e-9]
    return int(sizes[0]) if len(sizes) and sizes[0] >= _FEWEST_EXAMPLES else None
