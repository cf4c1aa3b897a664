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


def most_frequent_rule(runs: pd.DataFrame, axes: tuple[str, ...] = AXES) -> pd.DataFrame:
    """From the largest group of comparable runs, those of its most frequent rule."""
    compared = group_comparable(runs, axes)[0].runs
    return compared[compared["lr_rule"] == compared["lr_rule"].value_counts().index[0]]


def comparable_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """The largest group of runs that are comparable but for their base rate."""
    return group_comparable(runs, (*AXES, "base_lr"))[0].runs


def most_frequent_warmup(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the most frequent warmup."""
    return runs[runs["warmup_epochs"] == runs["warmup_epochs"].value_counts().index[0]]


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


def runs_at_best_warmup(
    runs: pd.DataFrame, metric: Metric
) -> tuple[pd.DataFrame, float, float, str] | None:
    """The runs of the warmup that finished at the most batches; of several, the best.

    Returns:
        The runs, with those that diverged, their warmup, and the margin as a number and in words;
        None with fewer than two batches that finished.
    """
    finished = finished_runs(runs, metric)
    smallest = finished[finished["global_batch"] == finished["global_batch"].min()]
    spans = finished.groupby("warmup_epochs").agg(
        batches=("global_batch", "nunique"), value=(metric.name, "mean")
    )
    if not len(spans) or spans["batches"].max() < 2:
        return None
    spans["value"] *= metric.sign
    warmup = spans.sort_values(["batches", "value"]).index[-1]
    margin, words = negligible_margin(
        metric, BREAKING, smallest[metric.name], finished[metric.name]
    )
    compared = pd.concat([finished, runs[runs["outcome"] == "diverged"]])
    return compared[compared["warmup_epochs"] == warmup], float(warmup), margin, words
