"""Pairs of learning-rate rules at each batch and warmup: which differ, all judged together."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.stats.contrasts import holm
from analysis.stats.equivalence import Comparison, compare
from analysis.stats.shares import validation_size
from analysis.tables.metric import Metric
from analysis.tables.validity import same_arms

#: Level of the tests of all pairs together: the chance that any is found to differ if none does.
LEVEL = 0.05

#: Verdict on two rules that came to the same learning rate at every step.
SAME_TRAINING = "the same training"

_PAIR = ["global_batch", "warmup_epochs", "first", "second"]


def compare_rules_in_pairs(
    runs: pd.DataFrame, metric: Metric, margin: float, accuracies: pd.Series
) -> pd.DataFrame:
    """Compare each pair of rules at a batch and warmup, with two seeds or more each.

    The p values of all pairs are corrected by Holm's method, for each of the two tests: among
    twenty pairs of which none differ, one would often seem to. Intervals are not corrected. Rules
    that came to the same rates at every step are the same training: there is nothing to test.

    Args:
        runs: that finished with the metric, or diverged.
        metric: that they are compared by.
        margin: differences smaller than this do not matter.
        accuracies: that tell how many validation examples there are, if the metric is one.

    Returns:
        One row per pair; no rows if there are none.
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
    found = [_compared(two, margin, metric, size, LEVEL) for *_, two in pairs]
    equivalent, different = (
        holm(np.where(is_one, np.nan, p)) < LEVEL
        for p in ([one.p_equivalent for one in found], [one.p_different for one in found])
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
            among = _compared(two, margin, metric, size, level)
            row |= {"verdict": among.verdict, "seeds_needed": among.seeds_needed}
        rows.append(dict(zip(_PAIR, names, strict=True)) | row)
    return pd.DataFrame(rows)


def _compared(
    arms: tuple[pd.DataFrame, pd.DataFrame],
    margin: float,
    metric: Metric,
    size: int | None,
    level: float,
) -> Comparison:
    lost = [arm["outcome"] == "diverged" for arm in arms]
    first, second = (
        arm.loc[~gone, metric.name].to_numpy(dtype=float)
        for arm, gone in zip(arms, lost, strict=True)
    )
    return compare(
        first,
        second,
        margin,
        level=level,
        num_validation=size,
        num_diverged=(int(lost[0].sum()), int(lost[1].sum())),
        worst=-metric.sign * np.inf,
    )
