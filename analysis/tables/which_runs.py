"""Which runs a question is about, and which differences do not matter."""

import numpy as np
import pandas as pd

from analysis.tables.comparable_runs import AXES, group_comparable
from analysis.tables.metric import Metric

#: Margins for accuracies, as fractions; for other metrics, the fraction of their mean.
BREAKING, SAME, _SHARE = 0.005, 0.003, 0.01

#: What runs of several lengths may differ in.
LENGTHS = (*AXES, "epochs", "steps", "examples")


def ended_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that finished or diverged: the others have no result."""
    return runs[runs["outcome"].isin(["finished", "diverged"])]


def most_frequent_rule(runs: pd.DataFrame) -> pd.DataFrame:
    """From the largest group of comparable runs, those of its most frequent rule."""
    compared = group_comparable(runs)[0].runs
    return compared[compared["lr_rule"] == compared["lr_rule"].value_counts().index[0]]


def finished_runs(runs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Those that finished and have the metric."""
    return runs[(runs["outcome"] == "finished") & runs[metric.name].notna()]


def negligible_margin(
    metric: Metric, of_accuracy: float, values: pd.Series, among: pd.Series
) -> tuple[float, str]:
    """The difference that does not matter, as a number and in words.

    For other metrics than accuracies it is 1 % of the mean of the values. If those of all runs
    are on both sides of 0, the mean says nothing about their size, and the margin is 0.
    """
    if metric.unit == "%":
        return of_accuracy, f"{100 * of_accuracy:g} points"
    if len(among) and among.min() < 0 < among.max():
        return 0.0, f"{metric.name} is on both sides of 0, where 1 % of its mean says nothing"
    margin = _SHARE * abs(float(values.mean())) if len(values) else np.nan
    return margin, "1 %" if np.isnan(margin) else f"{margin:.2g}, 1 %"
