"""A claim about the runs, judged: reproduced, contradicted, or not decidable with these runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.papers.grid import Point, ended, runs_at
from analysis.stats.equivalence import compare, seeds_to_see
from analysis.stats.replicates import Array, Replicates, percentile_interval
from analysis.tables.metric import ACCURACY, Metric

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "not decidable"

#: How a verdict begins to say why, if it needs what the runs do not record.
LACKING = "these runs have no "

#: From cell means, shape (draws, points in the claim's order), to the effect of each draw.
Effect = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of a paper as a predicate on the table.

    Attributes:
        text: the statement.
        where: the figure or section.
        points: points that it is about, in the paper's numbers.
        effect: what must be positive for it to hold; None for a claim of no difference between
            its two points.
        unit: of the effect.
        metric: what it is about.
        margin: for a claim of no difference: what does not matter.
        upper: the effect must also be below this.
        is_about_optimum: whether it needs the best warmup of each batch to lie inside the grid.
        only_there: why it can be judged on the paper's own data, model and epochs alone; empty if
            it can be judged on any.
    """

    text: str
    where: str
    points: Sequence[Point]
    effect: Effect | None
    unit: str = "accuracy"
    metric: Metric = ACCURACY
    margin: float = 0.0
    upper: float = np.inf
    is_about_optimum: bool = False
    only_there: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the runs say of a claim; nothing yet, unless said otherwise.

    Attributes:
        text: the statement.
        where: the figure or section.
        verdict: reproduced, contradicted or not decidable.
        effect: the effect; nan if it cannot be computed.
        low: lower end of its 95 % interval.
        high: upper end.
        unit: of the effect.
        num_seeds: fewest replicates of its points.
        seeds_needed: replicates a point that would decide it; 0 if decided, -1 if unknown.
        why: in words.
    """

    text: str
    where: str
    verdict: str = UNDECIDED
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    unit: str = "accuracy"
    num_seeds: int = 0
    seeds_needed: int = -1
    why: str = ""


def difference(means: Array) -> Array:
    """The first point minus the second: an effect."""
    return means[:, 0] - means[:, 1]


def judge(claim: Claim, runs: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    """Judge a claim on runs.

    A diverged run counts with the accuracy that it recorded last, or 0 if it recorded none.
    """
    values, num_diverged = _values(claim, runs)
    num_seeds = min(len(v) for v in values)
    blank = Verdict(text=claim.text, where=claim.where, unit=claim.unit, num_seeds=num_seeds)
    if num_seeds == 0:
        lacking = [str(p) for p, v in zip(claim.points, values, strict=True) if not len(v)]
        return replace(blank, why=f"not run: {', '.join(lacking)}")
    if claim.effect is None:
        judged = _judge_no_difference(values, claim.margin, blank)
    else:
        judged = judge_positive(values, claim.effect, blank, rng, claim.upper)
    return with_diverged(judged, num_diverged)


def with_diverged(verdict: Verdict, num_diverged: int) -> Verdict:
    """A verdict that says how many of its runs diverged, if any."""
    why = f"{verdict.why}; {num_diverged} diverged runs are included"
    return replace(verdict, why=why) if num_diverged else verdict


def recorded(runs: pd.DataFrame, metric: Metric = ACCURACY) -> pd.Series:
    """The metric of runs that ended; an accuracy that a diverged run never recorded is 0."""
    values = runs[metric.name]
    lost = (runs["outcome"] == "diverged") & (metric == ACCURACY)
    return values.mask(lost & values.isna(), 0.0)


def lacking(runs: pd.DataFrame, metric: Metric = ACCURACY) -> str:
    """Why no claim about a metric can be judged, if runs that finished have none; else empty."""
    has_finished = (runs["outcome"] == "finished").any()
    if has_finished and runs[metric.name].isna().all():
        return f"{LACKING}{metric.label}"
    return ""


def _values(claim: Claim, runs: pd.DataFrame) -> tuple[list[Array], int]:
    """The replicates of each point, and how many of all diverged."""
    runs = ended(runs)
    diverged = runs["outcome"] == "diverged"
    measured = recorded(runs, claim.metric)
    masks = [here & measured.notna() for here in runs_at(runs, claim.points)]
    values = [measured[here].to_numpy(dtype=float) for here in masks]
    return values, sum(int((here & diverged).sum()) for here in masks)


def judge_positive(
    values: Sequence[Array],
    effect: Effect,
    blank: Verdict,
    rng: np.random.Generator,
    upper: float = np.inf,
) -> Verdict:
    """Judge whether an effect is positive.

    The effect takes the means of the points; `values` are the replicates of each.
    """
    cells = Replicates(points=pd.DataFrame(index=range(len(values))), values=tuple(values))
    found = float(effect(cells.means[None, :])[0])
    if cells.num_seeds < 2:
        return replace(blank, effect=found, why="one seed per point: no interval")
    low, high = percentile_interval(effect(cells.resampled_means(rng, decisive=2)))
    verdict, why = UNDECIDED, "the interval contains zero"
    if low > 0 and high < upper:
        verdict, why = REPRODUCED, "the interval is on the claim's side"
    elif high <= 0 or low >= upper:
        verdict, why = CONTRADICTED, "the interval is on the other side"
    needed = 0 if verdict != UNDECIDED else _seeds_needed(values, found, blank.unit)
    return replace(
        blank, verdict=verdict, effect=found, low=low, high=high, seeds_needed=needed, why=why
    )


def _seeds_needed(values: Sequence[Array], effect: float, unit: str) -> int:
    """As for a difference of two means; unknown for effects in other units than the measure's."""
    spread = float(np.sqrt(np.mean([v.var(ddof=1) for v in values])))
    if unit == "exponent" or spread == 0 or not np.isfinite(effect) or effect == 0:
        return -1
    return max(seeds_to_see(effect, spread), min(len(v) for v in values) + 1)


def _judge_no_difference(values: Sequence[Array], margin: float, blank: Verdict) -> Verdict:
    if blank.num_seeds < 2:
        return replace(blank, why="one seed per point: no difference can be shown or excluded")
    first, second = values
    found = compare(first, second, margin)
    verdict = {"equivalent": REPRODUCED, "different": CONTRADICTED}.get(found.verdict, UNDECIDED)
    return replace(
        blank,
        verdict=verdict,
        effect=found.difference.value,
        low=found.difference.low,
        high=found.difference.high,
        seeds_needed=found.seeds_needed,
        why=f"two one-sided tests, margin {margin:g}: {found.verdict}",
    )
