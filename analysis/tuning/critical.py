"""The critical batch of tuned studies and of branches, for what depends on it in training."""

from pathlib import Path

import numpy as np

from analysis.stats.critical_branches import branch_differences, critical_branches
from analysis.stats.doubling import describe_doubling
from analysis.stats.to_target import reachable_targets
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.load import load_curves, load_runs
from analysis.tables.metric import AskedMetric, curve_columns, with_metric
from analysis.tables.which_runs import BREAKING, negligible_margin
from analysis.tuning.studies import finished_trials, load_tuned, steps_to_target, tuned_confounds
from sweeper.store.schema import RUNS


def tuned_critical_batch(results: Path, target: float | None = None) -> float:
    """``E_min / S_min`` of the largest set of studies whose rates were tuned [examples].

    Args:
        results: the folder that the studies wrote.
        target: in the unit of the objective; None for 2 % short of what every
            batch reaches.

    Raises:
        ValueError: if there are no such studies, or they have no critical batch.

    Source:
        Li et al. 2024, arXiv:2405.14578, equation 22: over whole runs, at each batch's best rate.
    """
    tuned, *_ = load_tuned(results)
    if tuned.rate is None:
        msg = f"the learning rate must be tuned; got {', '.join(tuned.space)}. Tune base_lr too."
        raise ValueError(msg)
    if found := tuned_confounds(tuned):
        msg = f"batches must differ in what was tuned only; got {'; '.join(found)}."
        raise ValueError(msg)
    asked = AskedMetric((metric := tuned.metric).name, metric.mode)
    runs = load_runs(results, ["metric_name", *(name for name in [metric.name] if name in RUNS)])
    curves = load_curves(results, curve_columns(runs, asked, "step", "examples_seen", "lr"))
    curves = with_metric(results, runs, curves, asked).curves
    if target is None:
        done = finished_trials(tuned)
        target = reachable_targets(done.assign(**{metric.name: done["value"]}), metric)[0]
    reached = steps_to_target(tuned, curves, target)
    _, fit, (_, answer) = describe_doubling(reached)
    if not fit or np.isnan(fit.critical_batch.value):
        raise ValueError(f"{answer.words} {answer.next}".strip())
    return fit.critical_batch.value


def find_critical_batches(results: Path, margin: float | None) -> dict[float, float]:
    """The critical batch at each position of the largest set of comparable branches.

    It is the estimate of `sweeper analysis branches`; where no batch was worse, the largest one.

    Args:
        results: the folder that the branches wrote.
        margin: what counts as not worse, in the unit of the metric; None: as there.

    Returns:
        By position [epochs], ascending: the critical batch [examples].

    Raises:
        ValueError: if there are no branches, or they are of several batches at a position.
    """
    asked = AskedMetric(None, None)
    runs = load_runs(results)
    measured = with_metric(results, runs, load_curves(results), asked)
    branches = measured.runs[measured.runs["branch"].notna()]
    if branches.empty:
        raise ValueError("it holds no branches that have ended.")  # noqa: EM101
    (group, *_) = group_comparable(branches, ("batch", "seed", "branch"))
    table = branch_differences(group.runs, measured.curves, measured.metric.name)
    if margin is None:
        values = table["of_parent"]
        margin, _ = negligible_margin(measured.metric, BREAKING, values, values)
    found = critical_branches(table, measured.metric.sign, margin).set_index("position")
    if not found.index.is_unique:
        raise ValueError("its parents have several batches at a position.")  # noqa: EM101
    largest = table.groupby("position")["global_batch"].max()
    estimate = found["estimate"].fillna(largest)
    return {float(at): float(estimate[at]) for at in sorted(estimate.index)}
