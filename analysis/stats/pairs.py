"""Whether two arms differ, are the same, or cannot be told apart; pairs of learning-rate rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.stats.contrasts import (
    Contrasts,
    SeedValues,
    assured_distance,
    assured_spread,
    correct_by_holm,
    rank_test,
    seeds_to_see,
    weigh_contrasts,
)
from analysis.stats.outliers import add_without, drop_wild
from analysis.stats.replicates import Array, Estimate, make_rng, validation_size
from analysis.tables.metric import Metric
from analysis.tables.validity import same_arms
from analysis.tables.which_runs import SAME, finished_runs, negligible_margin

_ARMS = ("the first arm", "the second arm")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms compared.

    Attributes:
        difference: mean of the first minus mean of the second, of runs that finished, with its
            95 % interval.
        verdict: equivalent, different or inconclusive.
        p_different: two-sided p value of the null of no difference.
        p_equivalent: p value of the null that the difference is as large as the margin, or larger.
        seeds_needed: replicates per arm that would decide, at 80 % power; 0 if decided, -1 if
            unknown.
    """

    difference: Estimate
    verdict: str
    p_different: float
    p_equivalent: float
    seeds_needed: int


def compare(
    first: Array,
    second: Array,
    margin: float = 0.003,
    *,
    level: float = 0.05,
    num_validation: int | None = None,
    num_diverged: Sequence[int] = (0, 0),
    worst: float = -np.inf,
) -> Comparison:
    """Two one-sided tests of equivalence, and Welch's of a difference; by ranks if a run diverged.

    Equivalent: the 90 % interval of the difference lies inside the margin. Different: the 95 %
    interval excludes zero, and the arms are not equivalent. Inconclusive: neither. That is for a
    level of 5 %; a pair among several needs a smaller one.

    Args:
        first: values of the finished runs of an arm.
        second: of the other.
        margin: differences smaller than this do not matter, in the unit of the values.
        level: of either test.
        num_validation: examples of the validation set, whose binomial error is given to an arm that
            measured the same at every seed; None if the values are not shares of it.
        num_diverged: runs of the two arms that diverged.
        worst: their value for ranking, inf or -inf.

    Raises:
        ValueError: if an arm has a single replicate.

    Source:
        Schuirmann 1987 (two one-sided tests); Welch 1947 (unequal variances).
    """
    values = SeedValues((first, second), num_diverged, worst, num_validation)
    counts, arms = values.counts, values.arms
    if min(counts) < 2:
        msg = (
            "each arm must have two or more seeds to be compared; "
            f"got {counts[0]} and {counts[1]}. Run more seeds."
        )
        raise ValueError(msg)
    by_rank = any(num_diverged)
    contrasts = Contrasts.pairs((0, 1)), Contrasts.pairs((0, 1), lower=-margin, upper=margin)
    differ, within = (
        weigh_contrasts(c, arms, [rank_test(c, 0, values.ranked, make_rng())] if by_rank else ())
        for c in contrasts
    )
    p_different = 2 * float(min(differ.p_for, differ.p_against))
    p_equivalent = float(within.p_for)
    verdict = "different" if p_different < level else "inconclusive"
    verdict = "equivalent" if p_equivalent < level else verdict
    method = f"Welch t, 95 %; equivalence margin {margin:g}"
    note = f"diverged: {' and '.join(values.shares)}; judged by rank" if by_rank else ""
    no_spread = np.isnan(p_different) and not by_rank
    if no_spread:
        note = "every seed measured the same: nothing to test by"
    ends = (np.nan, np.nan) if no_spread else (float(differ.low), float(differ.high))
    estimate = Estimate(float(differ.value), *ends, min(counts), method, note)
    needed = -1 if verdict == "inconclusive" else 0
    if needed and not (by_rank or np.isnan(p_different)):  # down to half the margin
        error = float(np.sqrt((arms.variances / arms.counts).sum()))
        distance = assured_distance(abs(estimate.value), error, float((arms.counts - 1).sum()))
        spread = assured_spread(arms.variances, arms.counts)
        needed = seeds_to_see(max(distance, margin / 2), spread, level=level)
        needed = max(needed, min(counts) + 1)
    rows = [(arm, v) for arm, of in zip(_ARMS, (first, second), strict=True) for v in of]
    measured = pd.DataFrame(rows, columns=["arm", "value"]).assign(outcome="finished")
    kept, wild = drop_wild(measured, ["arm"], "value")
    if wild:
        left, right = (kept.loc[kept["arm"] == arm, "value"].to_numpy(dtype=float) for arm in _ARMS)
        without = compare(
            left, right, margin, level=level, num_validation=num_validation,
            num_diverged=num_diverged, worst=worst,
        )  # fmt: skip
        estimate = add_without(estimate, wild, without.difference)
    return Comparison(estimate, verdict, p_different, p_equivalent, needed)


#: Level of the tests of all pairs together: the chance that any is found to differ if none does.
LEVEL = 0.05

#: Verdict on two rules that came to the same learning rate at every step.
SAME_TRAINING = "the same training"

_PAIR = ["global_batch", "warmup_epochs", "first", "second"]


def rule_pairs(
    runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric
) -> tuple[pd.DataFrame, float, str]:
    """The pairs of rules in comparable runs, with the margin as a number and in words."""
    finished = finished_runs(runs, metric)
    margin, words = negligible_margin(metric, SAME, finished[metric.name], finished[metric.name])
    known = [finished, curves[curves["run_id"].isin(runs["run_id"])]]
    accuracies = pd.concat([frame[metric.name] for frame in known if metric.name in frame])
    compared = pd.concat([finished, runs[runs["outcome"] == "diverged"]])
    return compare_rules_in_pairs(compared, metric, margin, accuracies), margin, words


def compare_rules_in_pairs(
    runs: pd.DataFrame, metric: Metric, margin: float, accuracies: pd.Series
) -> pd.DataFrame:
    """Compare each pair of rules at a batch and warmup, with two seeds or more each.

    The p values of all pairs are corrected by Holm's method, for each of the two tests: among
    twenty pairs of which none differ, some would often seem to. Intervals are not corrected. Rules
    that came to the same rates at every step are the same training: there is nothing to test.

    The accuracies tell how many validation examples there are, if the metric is an accuracy.

    Returns:
        a row per pair; no rows if there are none.
    """
    size = validation_size(accuracies.to_numpy(dtype=float)) if metric.unit == "%" else None
    arms = [
        (batch, warmup, {str(rule): arm for rule, arm in group.groupby("lr_rule") if len(arm) > 1})
        for (batch, warmup), group in runs.groupby(["global_batch", "warmup_epochs"])
    ]
    pairs = [
        (batch, warmup, first, second, (rules[first], rules[second]))
        for batch, warmup, rules in arms
        for first, second in combinations(rules, 2)
    ]
    is_one = np.array([bool(same_arms(pd.concat(two))) for *_, two in pairs], dtype=bool)
    found = [_compare_arms(two, margin, metric, size, LEVEL) for *_, two in pairs]
    equivalent, different = (
        correct_by_holm(np.where(is_one, np.nan, p)) < LEVEL
        for p in ([pair.p_equivalent for pair in found], [pair.p_different for pair in found])
    )
    level = LEVEL / max(1, int((~is_one).sum()))
    rows: list[Mapping[str, object]] = []
    for i, (*names, two) in enumerate(pairs):
        d = found[i].difference
        row = {"difference": d.value, "low": d.low, "high": d.high, "verdict": "equivalent",
               "seeds_needed": 0, "note": d.note}  # fmt: skip
        if is_one[i]:
            row |= {"low": np.nan, "high": np.nan, "verdict": SAME_TRAINING}
        elif different[i] and not equivalent[i]:
            row |= {"verdict": "different"}
        elif not equivalent[i]:  # judged again, at an equal share of the level
            among = _compare_arms(two, margin, metric, size, level)
            row |= {"verdict": among.verdict, "seeds_needed": among.seeds_needed}
        rows.append(dict(zip(_PAIR, names, strict=True)) | row)
    return pd.DataFrame(rows)


def _compare_arms(
    arms: tuple[pd.DataFrame, pd.DataFrame],
    margin: float,
    metric: Metric,
    size: int | None,
    level: float,
) -> Comparison:
    values = SeedValues.from_runs(arms, metric)
    first, second = values.finished
    return compare(
        first, second, margin, level=level, num_validation=size,
        num_diverged=values.num_diverged, worst=values.worst,
    )  # fmt: skip
