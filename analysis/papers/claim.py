"""A claim about the runs, judged: reproduced, contradicted, or why neither."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.stats.contrasts import (
    ONE_SIDED,
    Arms,
    Contrasts,
    SeedValues,
    assured_seeds,
    correct_by_holm,
    rank_test,
    weigh_contrasts,
)
from analysis.stats.optimum import best_warmups, exponent
from analysis.stats.outliers import drop_wild
from analysis.stats.replicates import Array, validation_size
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.which_runs import ended_runs

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_RUN, NOT_TESTED, REFUSED = "not run", "not tested", "refused"

#: How a verdict's reason begins, if the claim needs what the runs do not record.
LACKING = "these runs have no "

#: Differences that seeds are proposed for; less does not matter [accuracy, 0 to 1; nats].
MARGIN, LOSS_MARGIN = 0.003, 0.02

#: Columns that say at which point of a paper a run stands.
PLACE = ["paper_batch", "paper_warmup", "lr_rule"]

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


def scale_of(unit: str) -> tuple[int, str]:
    """What an effect is multiplied by in words, and the unit that it has then."""
    return (100, "points") if unit == "accuracy" else (1, unit)


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


def measure_arms(
    arms: Sequence[pd.DataFrame], metric: Metric = ACCURACY, others: pd.Series | None = None
) -> SeedValues:
    """What the ended runs of each point measured.

    Other runs with the same validation set help to tell how many examples it has.
    """
    values = SeedValues.from_runs(arms, metric)
    if metric.unit != "%":
        return values
    known = np.concatenate(values.finished) if others is None else others.to_numpy(dtype=float)
    return replace(values, num_validation=validation_size(known))


def judge_claim(
    claim: Claim, runs: pd.DataFrame, rng: np.random.Generator, num_claims: int
) -> Verdict:
    """Judge a claim on runs, as if there were no other; `settle_verdicts` corrects for the others.

    `num_claims` is how many claims of the paper there are, for the seeds that would decide.
    """
    ended, names = ended_runs(runs), [str(point) for point in claim.points]
    arms = [ended[here] for here in point_masks(ended, claim.points)]
    others = ended[claim.metric.name]
    counts = measure_arms(arms, claim.metric, others).counts
    blank = Verdict(text=claim.text, where=claim.where, unit=claim.unit)
    if not min(counts):
        return replace(blank, why=_describe_missing(runs, claim.points, counts))
    if claim.contrasts is None:
        blank = replace(blank, num_seeds=min(counts), num_looks=count_looks(arms))
        return _judge_exponent(claim, ended, rng, blank)
    by_name = dict(zip(names, arms, strict=True))
    return judge_arms(claim.contrasts, by_name, PLACE, blank, rng, num_claims, claim.metric, others)


def judge_arms(
    contrasts: Contrasts,
    arms: Mapping[str, pd.DataFrame],
    by: Sequence[str],
    blank: Verdict,
    rng: np.random.Generator,
    num_claims: int,
    metric: Metric = ACCURACY,
    others: pd.Series | None = None,
) -> Verdict:
    """The verdict on contrasts of arms that differ in columns, with what it is without wild seeds.

    Args:
        contrasts: of the arms.
        arms: ended runs, by the name of their point.
        by: the columns.
        blank: what is known of the verdict.
        rng: for permutations.
        num_claims: of the paper.
        metric: that the claim is about.
        others: its values at other points too, with the same validation set.
    """

    def judge(kept: Sequence[pd.DataFrame]) -> Verdict:
        values = measure_arms(kept, metric, others)
        prices = [arm.get(price_of(metric), pd.Series(0.0)).fillna(0.0).max() for arm in kept]
        return _judge_values(contrasts, [*arms], values, np.array(prices), blank, rng, num_claims)

    parts = [*arms.values()]
    seeds, looks = min(measure_arms(parts, metric, others).counts), count_looks(parts)
    blank = replace(blank, num_seeds=seeds, num_looks=looks)
    found, (kept, wild) = judge(parts), drop_wild(pd.concat(parts), by, metric.name)
    if not wild:
        return found
    without = judge([arm[arm.index.isin(kept.index)] for arm in parts])
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


def _describe_missing(runs: pd.DataFrame, points: Sequence[Point], counts: Sequence[int]) -> str:
    """Which points were not run, and which were but have no value."""
    found: dict[str, list[str]] = {}
    for point, here, count in zip(points, point_masks(runs, points), counts, strict=True):
        if not count:
            state = "run without a result" if here.any() else "not run"
            found.setdefault(state, []).append(str(point))
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in sorted(found.items()))


def _judge_values(
    contrasts: Contrasts,
    names: Sequence[str],
    values: SeedValues,
    prices: Array,
    blank: Verdict,
    rng: np.random.Generator,
    num_claims: int,
) -> Verdict:
    """Judge whether contrasts of points lie between their bounds.

    Those with a point at which runs diverged are judged by rank, a diverged run being the worst;
    the effect is that of the runs that finished. The prices are what choosing the settings of each
    point adds to the variance of its mean.
    """
    if blank.num_seeds < 2:
        return replace(blank, verdict=NOT_TESTED, why="one seed per point: no test")
    arms = values.arms
    arms = replace(arms, variances=arms.variances + arms.counts * prices)
    is_lost = np.array(values.num_diverged) > 0
    by_rank = [bool((uses & is_lost).any()) for uses in contrasts.uses]
    told = zip(names, values.shares, is_lost & contrasts.uses.any(axis=0), strict=True)
    shares = ", ".join(f"{name} {share}" for name, share, is_told in told if is_told)
    diverged = f"diverged, hence judged by rank: {shares}" if shares else ""
    if any(by_rank) and contrasts.uses.sum(axis=1).min() < 2:
        return replace(blank, verdict=NOT_TESTED, why=f"nothing to rank against; {diverged}")
    ranks = [
        rank_test(contrasts, i, values.ranked, rng) if ranked else None
        for i, ranked in enumerate(by_rank)
    ]
    found = weigh_contrasts(contrasts, arms, ranks)
    first, second = _name_pair(contrasts, arms, names)
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
    if any(by_rank):
        return judged
    resolution = LOSS_MARGIN if blank.unit == "nats" else MARGIN
    looks = blank.num_looks + 1  # with these seeds it is looked at again
    level = ONE_SIDED / (num_claims * looks)
    needed, distance = assured_seeds(contrasts, arms, resolution, level)
    return replace(judged, seeds_needed=max(needed, blank.num_seeds + 1), seeds_for=distance)


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
    optima = best_warmups(placed, rng, metric=claim.metric)
    found = exponent(optima)
    if optima.exponents is None:
        return replace(blank, verdict=REFUSED, effect=found.value, why=found.note)
    p_for, p_against = shares_outside(optima.exponents, 0.0, 1.0)
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
