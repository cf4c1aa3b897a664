"""Pairs of learning-rate rules at each batch and warmup: which differ, all judged together."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.stats.contrasts import holm
from analysis.stats.equivalence import Comparison, compare
from analysis.stats.shares import validation_size
from analysis.tables.metric import Metric

#: Of the tests of all pairs together: the chance that any is found to differ where none does.
LEVEL = 0.05

_PAIR = ["global_batch", "warmup_epochs", "first", "second"]


def compare_rules_in_pairs(
    runs: pd.DataFrame, metric: Metric, margin: float, accuracies: pd.Series
) -> pd.DataFrame:
    """Each two rules of a batch and warmup with two seeds or more.

    The p values of all pairs are corrected for each other by Holm's method, those of either test:
    among twenty pairs of which none differ, one would often be found to by itself. Intervals are
    those of a pair alone.

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
    found = [_compared(arms, margin, metric, size, LEVEL) for *_, arms in pairs]
    equivalent = holm(np.array([one.p_equivalent for one in found])) < LEVEL
    different = holm(np.array([one.p_different for one in found])) < LEVEL
    rows: list[Mapping[str, object]] = []
    for (*names, two), one, is_same, is_other in zip(
        pairs, found, equivalent, different, strict=True
    ):
        verdict, needed = "equivalent" if is_same else "different", 0
        if not (is_same or is_other):  # nor at an equal share of the level
            among = _compared(two, margin, metric, size, LEVEL / len(pairs))
            verdict, needed = among.verdict, among.seeds_needed
        d = one.difference
        rows.append(
            dict(zip(_PAIR, names, strict=True))
            | {
                "difference": d.value, "low": d.low, "high": d.high, "verdict": verdict,
                "seeds_needed": needed, "note": d.note,
            }
        )  # fmt: skip
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
