"""Estimates at an end of the grid, and what to run beyond it."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import pandas as pd

from analysis.decide.arms import Arm, config_of
from analysis.decide.command import Config
from analysis.decide.expected import UNKNOWN, Interval, expected_best
from analysis.decide.proposal import Proposal, joined
from analysis.stats.breaking import breaking_batch
from analysis.stats.optimum import best_lrs, best_warmups
from analysis.stats.replicates import Replicates, fixed_rng
from analysis.stats.target import to_target
from analysis.tables.metric import ACCURACY, Measured, Metric
from analysis.tables.validity import at_upper_edge
from analysis.tables.which_runs import (
    at_best_warmup,
    ended,
    finished_runs,
    of_one_rule,
    of_one_warmup,
    rates_of,
)
from sweeper.spec.run_spec import stored_run_spec

_FEW_DRAWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An estimate that lies at an edge of the grid, at one batch.

    Attributes:
        key: the setting whose grid ends: warmup, base_lr or batch.
        batch: where; the largest, if the batches end.
        is_upper: which end.
        grid: values of the setting, in rising order.
        arms: one for each value.
        factor: from the column of the runs table to the setting; 1 where they are the same.
        metric: what it is about.
    """

    key: str
    batch: int
    is_upper: bool
    grid: list[float]
    arms: list[Arm]
    factor: float = 1.0
    metric: Metric = ACCURACY


def edges(measured: Measured) -> list[Edge]:
    """Best warmups, best rates and breaking batches that lie at or beyond an end of the grid."""
    metric, runs = measured.metric, measured.runs_with_metric
    if not len(finished_runs(runs, metric)):
        return []
    one_rule, rates = of_one_rule(runs), of_one_warmup(rates_of(runs))
    return [
        *_of_optima(one_rule, "warmup", "warmup_epochs", metric),
        *_of_optima(rates, "base_lr", "peak_lr", metric),
        *_of_breaking(one_rule, metric),
    ]


def _of_optima(runs: pd.DataFrame, key: str, column: str, metric: Metric) -> Iterator[Edge]:
    """Batches whose best setting is not inside the grid; a best warmup of 0 is no edge."""
    rng, find = fixed_rng(), best_warmups if key == "warmup" else best_lrs
    table = find(runs, rng, draws=_FEW_DRAWS, metric=metric).table()
    rising = {batch for batch, _, _ in at_upper_edge(runs, metric)} if key == "warmup" else set()
    for row in table.to_dict("records"):
        at_batch = runs[runs["global_batch"] == row["global_batch"]]
        arms = _arms(at_batch, key, column)
        values = list(arms)
        is_upper = row["best"] >= values[-1] or row["global_batch"] in rising
        end = -1 if is_upper else 0
        if is_upper or (row["best"] <= values[0] and values[0] > 0):
            yield Edge(
                key=key,
                batch=int(row["global_batch"]),
                is_upper=bool(is_upper),
                grid=values,
                arms=list(arms.values()),
                factor=_factor(values[end], arms[values[end]].config[key]),
                metric=metric,
            )


def edges_of_warmup(runs: pd.DataFrame, metric: Metric) -> list[Edge]:
    """Batches at which the best warmup of these runs is the longest tried."""
    return [edge for edge in _of_optima(runs, "warmup", "warmup_epochs", metric) if edge.is_upper]


def _of_breaking(runs: pd.DataFrame, metric: Metric) -> Iterator[Edge]:
    found = at_best_warmup(runs, metric)
    if found is None:
        return
    at_warmup, _, margin, _ = found
    rng = fixed_rng()
    if np.isfinite(breaking_batch(at_warmup, rng, margin, _FEW_DRAWS, metric).value):
        return
    arms = _arms(at_warmup, "batch", "global_batch")
    largest = int(max(arms))
    yield Edge(
        key="batch", batch=largest, is_upper=True, grid=list(arms), arms=list(arms.values()),
        metric=metric,
    )  # fmt: skip


def _arms(runs: pd.DataFrame, key: str, column: str) -> dict[float, Arm]:
    """Arms by the values of a column, in rising order; only values at which a run ended."""
    groups = {float(str(v)): rows for v, rows in runs.groupby(column) if len(ended(rows))}
    return {
        value: Arm(f"{key}={value:g}", rows, config_of(rows.iloc[0]))
        for value, rows in sorted(groups.items())
    }


def _factor(value: float, setting: float | None) -> float:
    """What a column is multiplied by to be the key: a rule scales rates, and may scale warmups."""
    return float(setting) / value if setting and value else 1.0


def of_edges(found: Sequence[Edge]) -> Proposal:
    """Longer grids for estimates at their ends, all of one key and at one end."""
    first = found[0]
    side = "upper" if first.is_upper else "lower"
    batches = ", ".join(f"{edge.batch:,}" for edge in found)
    question = {
        "warmup": f"The best warmup is at the {side} end of the grid at batch {batches}",
        "base_lr": f"The best rate is at the {side} end of the grid at batch {batches}",
        "batch": f"{first.metric.word.capitalize()} holds up to the largest batch, {batches}",
    }[first.key]
    blank = Proposal(question=question, unit={"warmup": "epochs"}.get(first.key, ""))
    added: list[Config] = []
    refused = ""
    bests: list[str] = []
    for edge in found:
        configs, why = _beyond(edge)
        added += configs
        refused = refused or why
        low, high = _expected_best(edge, configs)
        if not np.isnan(low) and (low > 0 or np.isfinite(high)):
            bests.append(f"{low:.3g} to {high:.3g} at batch {edge.batch:,}")
    if not added:
        return replace(blank, why=refused)
    values = sorted({float(config[first.key]) for config in added})
    why = f"{first.key}={','.join(f'{value:g}' for value in values)}, beyond the grid"
    if first.key != "batch":
        expected = f"expected best, if the parabola continues: {'; '.join(bests)}"
        unknown = "where the best will be is not known, as these runs show no optimum"
        why += f"; {expected if bests else unknown}"
    blank = replace(blank, why=why)
    return joined([arm for edge in found for arm in edge.arms], added, blank)


def _beyond(edge: Edge) -> tuple[list[Config], str]:
    """The runs of up to two values beyond an end; none, and why, if no value is possible."""
    outermost = edge.arms[-1 if edge.is_upper else 0]
    found: list[Config] = []
    refused = ""
    for value in _next_values(edge):
        config = {**outermost.config, edge.key: value}
        try:
            stored_run_spec(config)
        except ValueError as error:
            refused = refused or str(error).splitlines()[0]
            continue
        found += [{**config, "seed": seed} for seed in outermost.seeds]
    return found, refused or f"nothing beyond {edge.key}={edge.grid[-1]:g} is possible"


def _next_values(edge: Edge) -> list[float]:
    """Up to two values beyond the end, in the steps of the grid.

    Warmups go up to the next milestone, or halfway to the end of training if they would reach it.
    """
    scaled = [value * edge.factor for value in edge.grid]
    if edge.key == "batch":
        return [int(2 * scaled[-1])]
    if not edge.is_upper and edge.key == "warmup":
        return [0.0]
    end, beside = (scaled[-1], scaled[-2]) if edge.is_upper else (scaled[0], scaled[1])
    step = end / beside if beside else 2.0
    step = float(np.exp(np.clip(log(step), -log(_LARGEST_STEP), log(_LARGEST_STEP))))
    step = step if abs(log(step)) > log(_SMALLEST_STEP) else (2.0 if edge.is_upper else 0.5)
    found = [float(f"{end * step**i:.4g}") for i in (1, 2)]
    if edge.key != "warmup":
        return found
    milestones = edge.arms[-1].config["schedule"].get("milestones") or ()
    last = min([m for m in milestones if m > end], default=np.inf)
    found = [value for value in found if value <= last] or [float(last)]
    epochs = edge.arms[-1].config["epochs"]
    return [value for value in found if value < epochs] or [float(f"{(end + epochs) / 2:.4g}")]


_SMALLEST_STEP, _LARGEST_STEP = 1.1, 4.0


def _expected_best(edge: Edge, configs: Sequence[Config]) -> Interval:
    if edge.key == "batch" or not configs:
        return UNKNOWN
    column = {"warmup": "warmup_epochs", "base_lr": "peak_lr"}[edge.key]
    added = np.array(sorted({float(config[edge.key]) for config in configs})) / edge.factor
    rows = pd.concat([arm.runs for arm in edge.arms])
    cells, _ = Replicates.of(rows, ["global_batch", column], edge.metric.name).replicated()
    low, high = expected_best(cells, column, added, edge.metric, fixed_rng())
    return low * edge.factor, high * edge.factor


def of_target(measured: Measured, target: float, results: str) -> list[Proposal]:
    """A target that all batches reach, if some miss this one: longer runs would not compare."""
    metric, runs = measured.metric, of_one_rule(measured.runs_with_metric)
    reached = to_target(runs, measured.curves, target, metric)
    best = reached.groupby(["global_batch", "seed"])["reached_target"].any()
    missed = best[~best].index.get_level_values(0).unique()
    if not len(missed):
        return []
    signed = (metric.sign * measured.curves[metric.name]).groupby(measured.curves["run_id"]).max()
    within = runs.assign(best=runs["run_id"].map(signed))
    lowest = metric.sign * within.groupby(["global_batch", "seed"])["best"].max().min()
    question = f"{metric.shown(target)} is not reached by every seed at batch " + ", ".join(
        f"{batch:,}" for batch in missed
    )
    why = "longer runs would be another comparison; every batch and seed of these runs reaches "
    why += f"{metric.shown(lowest)}"
    shown = np.floor(1e4 * lowest) / 1e4 if metric.sign > 0 else np.ceil(1e4 * lowest) / 1e4
    command = ["python", "-m", "analysis", "estimates", results, "--target", f"{shown:g}"]
    return [Proposal(question=question, why=why, commands=[shlex.join(command)])]
