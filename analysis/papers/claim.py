"""A claim about the runs, judged: reproduced, contradicted, or why neither."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.contrasts import (
    ONE_SIDED,
    Arms,
    Contrasts,
    assured_seeds,
    correct_by_holm,
    rank_test,
    weigh_contrasts,
)
from analysis.stats.optimum import best_warmups, exponent_draws
from analysis.stats.outliers import drop_wild
from analysis.stats.replicates import Array, format_share, validation_size
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.which_runs import ended_runs

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_RUN, NOT_TESTED, REFUSED = "not run", "not tested", "refused"

#: How a verdict's reason begins, if the claim needs what the runs do not record.
LACKING = "these runs have no "

#: Differences that seeds are proposed for; less does not matter [accuracy, 0 to 1; nats].
MARGIN, LOSS_MARGIN = 0.003, 0.02

#: Runs that start later than this after all others have ended were added by another command.
_PAUSE = pd.Timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a paper's grid, in the paper's numbers.

    Attributes:
        batch: global batch [examples].
        warmup: [epochs].
        rule: the lr rule.
    """

    batch: int
    warmup: float
    rule: str = "linear"

    def __str__(self) -> str:
        return f"batch {self.batch:,} warmup {self.warmup:g} {self.rule}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of a paper as a predicate on the table.

    Attributes:
        text: the statement.
        where: the figure or section.
        points: points that it is about, in the paper's numbers.
        contrasts: of these points, what must lie between bounds for it to hold; None for a claim
            that the best warmup grows with the batch to a power between 0 and 1.
        unit: of the effect.
        metric: what it is about.
        only_there: why it can be judged on the paper's own data, model and epochs alone; empty if
            it can be judged on any.
    """

    text: str
    where: str
    points: Sequence[Point]
    contrasts: Contrasts | None
    unit: str = "accuracy"
    metric: Metric = ACCURACY
    only_there: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the runs say about a claim; by default nothing yet.

    Attributes:
        text: the statement.
        where: the figure or section.
        verdict: reproduced, contradicted, or why it is neither: undecided so far, not run, not
            tested (one seed, say), refused.
        first: the point that the effect is the mean of, less that of another; empty if it is not.
        second: the other point.
        effect: the effect; nan if it cannot be computed.
        low: lower end of its 95 % interval, not corrected for other claims.
        high: upper end.
        p: one-sided p value of the nearer verdict, if it were the only claim; nan if it cannot be
            judged.
        p_corrected: the same, corrected for the paper's other claims and for looks; decides.
        unit: of the effect.
        num_seeds: fewest replicates of its points.
        num_looks: how often it could be judged so far, each time before more runs were added.
        seeds_needed: replicates per point that would decide it; 0 if decided, -1 if unknown.
        seeds_for: the effect's distance from its bounds that `seeds_needed` assumes.
        why: in words.
    """

    text: str
    where: str
    verdict: str = NOT_RUN
    first: str = ""
    second: str = ""
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p: float = np.nan
    p_corrected: float = np.nan
    unit: str = "accuracy"
    num_seeds: int = 0
    num_looks: int = 1
    seeds_needed: int = -1
    seeds_for: float = np.nan
    why: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is neither reproduced nor contradicted."""
        return self.verdict not in (REPRODUCED, CONTRADICTED)


@dataclass(frozen=True, slots=True)
class PointValues:
    """What the seeds of a claim's points measured.

    Attributes:
        finished: the metric of the runs that finished, of each point.
        num_diverged: runs that diverged, of each point.
        names: of the points.
        worst: value of a diverged run when runs are ranked, inf or -inf.
        num_validation: examples of the validation set, if the metric is a share of them.
        prices: what choosing the settings of each point adds to the variance of its mean.
    """

    finished: Sequence[Array]
    num_diverged: Sequence[int]
    names: Sequence[str]
    worst: float = -np.inf
    num_validation: int | None = None
    prices: Sequence[float] = ()

    @property
    def num_seeds(self) -> int:
        """Fewest runs of a point."""
        counted = zip(self.finished, self.num_diverged, strict=True)
        return min(len(values) + lost for values, lost in counted)

    @property
    def ranked(self) -> list[Array]:
        """The values of each point, diverged runs with the worst."""
        counted = zip(self.finished, self.num_diverged, strict=True)
        return [np.append(values, np.full(lost, self.worst)) for values, lost in counted]

    def describe_diverged(self, used: NDArray[np.bool_]) -> str:
        """The share that diverged of each point that is used, in words; empty if none did."""
        counted = zip(self.names, self.finished, self.num_diverged, used, strict=True)
        shares = [
            f"{n} {format_share(k, len(v) + k)}" for n, v, k, is_used in counted if k and is_used
        ]
        return f"diverged, hence judged by rank: {', '.join(shares)}" if shares else ""


def price_of(metric: Metric) -> str:
    """The column with what choosing a point's settings by a metric adds to its mean's variance."""
    return f"price_of_{metric.name}"


def point_masks(runs: pd.DataFrame, points: Sequence[Point]) -> list[pd.Series]:
    """A mask of the runs that stand at each point."""
    return [
        (runs["paper_batch"] == p.batch)
        & (runs["paper_warmup"] == p.warmup)
        & (runs["lr_rule"] == p.rule)
        for p in points
    ]


def runs_about(claim: Claim, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs at a claim's points; for the best warmup's exponent, those of any warmup."""
    if claim.contrasts is not None:
        return runs[np.any(point_masks(runs, claim.points), axis=0)]
    batches, rules = {p.batch for p in claim.points}, {p.rule for p in claim.points}
    return runs[runs["paper_batch"].isin(batches) & runs["lr_rule"].isin(rules)]


def point_values(
    arms: Sequence[pd.DataFrame],
    names: Sequence[str],
    metric: Metric = ACCURACY,
    others: pd.Series | None = None,
) -> PointValues:
    """What the ended runs of each point measured.

    Other runs with the same validation set help to tell how many examples it has.
    """

    def known_values(column: pd.Series) -> Array:
        return column.dropna().to_numpy(dtype=float)

    lost = [arm["outcome"] == "diverged" for arm in arms]
    finished = [
        known_values(arm.loc[~bad, metric.name]) for arm, bad in zip(arms, lost, strict=True)
    ]
    known = np.concatenate(finished if others is None else [*finished, known_values(others)])
    size = validation_size(known) if metric.unit == "%" else None
    counts = [int(bad.sum()) for bad in lost]
    prices = [arm.get(price_of(metric), pd.Series(0.0)).fillna(0.0).max() for arm in arms]
    return PointValues(finished, counts, names, -metric.sign * np.inf, size, prices)


def judge_claim(
    claim: Claim, runs: pd.DataFrame, rng: np.random.Generator, num_claims: int
) -> Verdict:
    """Judge a claim on runs, as if there were no other; `settle_verdicts` corrects for the others.

    `num_claims` is how many claims of the paper there are, for the seeds that would decide.
    """
    everything, runs = runs, ended_runs(runs)
    arms = [runs[here] for here in point_masks(runs, claim.points)]
    names, metric = [str(point) for point in claim.points], claim.metric
    measured = point_values(arms, names, metric, runs[metric.name])
    seeds, looks = measured.num_seeds, count_looks(arms)
    blank = Verdict(
        text=claim.text, where=claim.where, unit=claim.unit, num_seeds=seeds, num_looks=looks
    )
    if measured.num_seeds == 0:
        lacks = [not len(values) for values in measured.ranked]
        return replace(blank, why=_describe_missing(everything, claim.points, lacks))
    if claim.contrasts is None:
        return _judge_exponent(claim, runs, rng, blank)
    contrasts = claim.contrasts

    def judge(arms: Sequence[pd.DataFrame]) -> Verdict:
        measured = point_values(arms, names, metric, runs[metric.name])
        return judge_contrasts(contrasts, measured, blank, rng, num_claims)

    return judge_beside(judge, arms, ["paper_batch", "paper_warmup", "lr_rule"], metric)


def judge_beside(
    judge: Callable[[Sequence[pd.DataFrame]], Verdict],
    arms: Sequence[pd.DataFrame],
    by: Sequence[str],
    metric: Metric = ACCURACY,
) -> Verdict:
    """The verdict on arms that differ in columns, with what it is without wild seeds."""
    found, (kept, wild) = judge(arms), drop_wild(pd.concat(arms), by, metric.name)
    if not wild:
        return found
    without = judge([arm[arm.index.isin(kept.index)] for arm in arms])
    verdict = UNDECIDED if without.p > ONE_SIDED else without.verdict
    said = f"{wild}; without, {verdict}: p = {without.p:.2g} if it were the only claim"
    return replace(found, why="; ".join(filter(None, [said, found.why])))


def number_sessions(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with the `session` that each began in: those before it had ended and could be judged.

    Uses `started_at` and `wall_s`; runs without these began in no session.
    """
    known = runs.dropna(subset=["started_at", "wall_s"]).sort_values("started_at")
    starts = pd.to_datetime(known["started_at"], utc=True)
    ends = starts + pd.to_timedelta(known["wall_s"].astype(float), unit="s")
    has_paused = starts - ends.cummax().shift() > _PAUSE
    return runs.assign(session=has_paused.cumsum())


def count_looks(arms: Sequence[pd.DataFrame]) -> int:
    """How often these points could be judged: now, and each time before a session added runs.

    They could as soon as each had two or more. Uses `session`.
    """
    points = [arm["session"].value_counts() for arm in arms]
    there = pd.concat(points, axis=1).fillna(0).sort_index().cumsum().min(axis=1)
    return 1 + int((there.iloc[:-1] > 1).sum())


def _describe_missing(runs: pd.DataFrame, points: Sequence[Point], lacks: Sequence[bool]) -> str:
    """Which points were not run, and which were but have no value."""
    found: dict[str, list[str]] = {}
    for point, here, is_lacking in zip(points, point_masks(runs, points), lacks, strict=True):
        if is_lacking:
            state = "run without a result" if here.any() else "not run"
            found.setdefault(state, []).append(str(point))
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in sorted(found.items()))


def judge_contrasts(
    contrasts: Contrasts,
    measured: PointValues,
    blank: Verdict,
    rng: np.random.Generator,
    num_claims: int,
) -> Verdict:
    """Judge whether contrasts of points lie between their bounds.

    Those with a point at which runs diverged are judged by rank, a diverged run being the worst;
    the effect is that of the runs that finished.
    """
    if blank.num_seeds < 2:
        return replace(blank, verdict=NOT_TESTED, why="one seed per point: no test")
    arms = Arms.from_seeds(measured.finished)
    if measured.num_validation:
        arms = arms.floor_variances(measured.num_validation)
    arms = replace(arms, variances=arms.variances + arms.counts * np.array(measured.prices or 0.0))
    by_rank = contrasts.uses_any(np.array(measured.num_diverged) > 0)
    diverged = measured.describe_diverged(np.array(contrasts.uses.any(axis=0)))
    if any(by_rank) and contrasts.uses.sum(axis=1).min() < 2:
        return replace(blank, verdict=NOT_TESTED, why=f"nothing to rank against; {diverged}")
    ranks = [
        rank_test(contrasts, i, measured.ranked, rng) if ranked else None
        for i, ranked in enumerate(by_rank)
    ]
    found = weigh_contrasts(contrasts, arms, ranks)
    first, second = _name_pair(contrasts, arms, measured.names)
    judged = replace(
        blank,
        first=first,
        second=second,
        verdict=REPRODUCED if found.p_for <= found.p_against else CONTRADICTED,
        effect=float(found.value),
        low=float(found.low),
        high=float(found.high),
        p=float(min(found.p_for, found.p_against)),
        why=diverged,
    )
    if np.isnan(judged.p):
        why = "every seed of a point measured the same: nothing to test by"
        return replace(judged, verdict=NOT_TESTED, low=np.nan, high=np.nan, why=why)
    if not any(by_rank):
        resolution = LOSS_MARGIN if blank.unit == "nats" else MARGIN
        looks = blank.num_looks + 1  # with these seeds it is looked at again
        level = ONE_SIDED / (num_claims * looks)
        needed, distance = assured_seeds(contrasts, arms, resolution, level)
        needed = max(needed, blank.num_seeds + 1)
        judged = replace(judged, seeds_needed=needed, seeds_for=distance)
    return judged


def _name_pair(contrasts: Contrasts, arms: Arms, names: Sequence[str]) -> tuple[str, str]:
    """The two points that the deciding contrast is the difference of; empty if it is not one."""
    values = np.where(contrasts.uses, contrasts.weights * arms.means, 0.0).sum(axis=1)
    if np.isnan(values).any():
        return "", ""
    weights = contrasts.weights[int(values.argmax() if contrasts.is_any else values.argmin())]
    if sorted(weights[weights != 0]) != [-1, 1]:
        return "", ""
    return names[int(weights.argmax())], names[int(weights.argmin())]


def _judge_exponent(
    claim: Claim, runs: pd.DataFrame, rng: np.random.Generator, blank: Verdict
) -> Verdict:
    """Whether the best warmup grows with the batch, by less than the batch."""
    runs = runs_about(claim, runs)
    placed = runs.assign(global_batch=runs["paper_batch"], warmup_epochs=runs["paper_warmup"])
    found, drawn = exponent_draws(best_warmups(placed, rng, metric=claim.metric))
    if not drawn:
        return replace(blank, verdict=REFUSED, effect=found.value, why=found.note)
    p_for, p_against = map(max, zip(*(shares_outside(d, 0.0, 1.0) for d in drawn), strict=True))
    return replace(
        blank,
        verdict=REPRODUCED if p_for <= p_against else CONTRADICTED,
        effect=found.value,
        low=found.low,
        high=found.high,
        p=min(p_for, p_against),
        why=found.note,
    )


def shares_outside(draws: Array, lower: float, upper: float) -> tuple[float, float]:
    """The two p values of lying between bounds; draws without a value count against both."""
    count, lost = len(draws) + 1, 1 + int(np.isnan(draws).sum())
    sides = [int((draws <= lower).sum()), int((draws >= upper).sum())]
    other = [int((draws >= lower).sum()), int((draws <= upper).sum())]
    return (max(sides) + lost) / count, min(1.0, 2 * (min(other) + lost) / count)


def settle_verdicts(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on a paper's claims as one family: decided by p values corrected by Holm.

    Each is multiplied by its looks first (Bonferroni).
    """
    at_looks = np.array([v.p * v.num_looks for v in verdicts], dtype=float)
    corrected = correct_by_holm(np.minimum(1.0, at_looks))
    settled = [replace(v, p_corrected=float(p)) for v, p in zip(verdicts, corrected, strict=True)]
    return [
        v
        if np.isnan(v.p)
        else replace(v, seeds_needed=0, seeds_for=np.nan)
        if v.p_corrected <= ONE_SIDED
        else replace(v, verdict=UNDECIDED)
        for v in settled
    ]


def lacking_metric(runs: pd.DataFrame, metric: Metric = ACCURACY) -> str:
    """Why no claim about a metric can be judged, if runs that finished have none; else empty."""
    has_finished = (runs["outcome"] == "finished").any()
    if has_finished and runs[metric.name].isna().all():
        return f"{LACKING}{metric.label}"
    return ""
