"""Estimates at an end of the grid, and what to run beyond it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, nan

import pandas as pd

from analysis.decide.arms import Arm
from analysis.decide.command import Config, change_setting, read_setting
from analysis.decide.proposal import Proposal, propose_runs
from analysis.stats.best_setting import EXTENDED, SIDES, Ends, choose_settings
from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.optimum import best_settings
from analysis.stats.replicates import make_rng
from analysis.tables.metric import ACCURACY, Measured, Metric
from analysis.tables.settings import comparable_settings, find_rate_key
from analysis.tables.validity import upper_edges
from analysis.tables.which_runs import BREAKING, ended_runs, finished_runs, negligible_margin
from sweeper.spec.run_spec import read_run_spec

_FEW_DRAWS = 400
_SMALLEST_STEP, _LARGEST_STEP = 1.1, 4.0


@dataclass(frozen=True, slots=True)
class Edge:
    """An estimate that lies at an edge of the grid, at a batch.

    Attributes:
        key: the setting whose grid ends: warmup, batch, base_lr or what the rate was typed as.
        batch: where; the largest, if the batches end.
        is_upper: which end.
        arms: by the value of the setting, in rising order.
        factor: from the column of the runs table to the setting; 1 where they are the same.
        metric: what it is about.
    """

    key: str
    batch: int
    is_upper: bool
    arms: Mapping[float, Arm]
    factor: float = 1.0
    metric: Metric = ACCURACY

    @property
    def outermost(self) -> Arm:
        """The arm at the end of the grid."""
        return list(self.arms.values())[-1 if self.is_upper else 0]


def find_edges(measured: Measured) -> list[Edge]:
    """Best warmups, best rates and breaking batches that lie at or beyond an end of the grid."""
    metric, runs = measured.metric, measured.runs_with_metric
    if not len(finished_runs(runs, metric)):
        return []
    tuned, columns = comparable_settings(runs)
    best = choose_settings(tuned, columns, metric)
    found = [
        edge
        for column in columns
        if column in EXTENDED
        for edge in find_optimum_edges(best.keep_others(tuned, column), column, metric, best.ends)
    ]
    finished = finished_runs(best.runs, metric)
    if finished["global_batch"].nunique() < 2:
        return found
    smallest = finished[finished["global_batch"] == finished["global_batch"].min()][metric.name]
    margin, _ = negligible_margin(metric, BREAKING, smallest, finished[metric.name])
    if margin and not isfinite(
        breaking_batch(best.runs, make_rng(), margin, _FEW_DRAWS, metric, best.price).value
    ):
        arms = _arms_by_value(best.runs, "batch", "global_batch")
        largest = int(max(arms))
        found.append(Edge("batch", largest, is_upper=True, arms=arms, metric=metric))
    return found


def find_optimum_edges(
    runs: pd.DataFrame, column: str, metric: Metric, ends: Ends | None = None
) -> Iterator[Edge]:
    """Batches whose best setting is not inside the grid; a best warmup of 0 is no edge.

    It is the best of the response, or what was chosen: `ends` are those of `BestSettings`.
    """
    key = find_rate_key(runs) if column == "peak_lr" else EXTENDED[column]
    table = best_settings(runs, column, make_rng(), _FEW_DRAWS, metric).table()
    best = table.set_index("global_batch")["best"].to_dict()
    rising = {batch for batch, _, _ in upper_edges(runs, metric)} if key == "warmup" else set()
    for batch in sorted({*map(int, runs["global_batch"])}):
        end = (ends or {}).get(batch, {}).get(column, "")
        if batch not in best and not end:
            continue
        arms = _arms_by_value(runs[runs["global_batch"] == batch], key, column)
        least, most, value = min(arms), max(arms), best.get(batch, nan)
        is_upper = bool(value >= most or batch in rising or end == SIDES[column][1])
        if is_upper or value <= least > 0 or end:
            place = most if is_upper else least
            setting = read_setting(arms[place].config, key)  # a rule scales rates and warmups
            factor = float(setting) / place if setting and place else 1.0
            yield Edge(key, batch, is_upper, arms, factor, metric)


def _arms_by_value(runs: pd.DataFrame, key: str, column: str) -> dict[float, Arm]:
    """Arms by the values of a column, in rising order; only values at which a run ended."""
    groups = {float(str(v)): rows for v, rows in runs.groupby(column) if len(ended_runs(rows))}
    return {v: Arm.of_runs(f"{key}={v:g}", rows) for v, rows in sorted(groups.items())}


def propose_longer_grid(found: Sequence[Edge]) -> Proposal:
    """Longer grids for estimates at their ends, all of the same key and at the same end."""
    first = found[0]
    side = "upper" if first.is_upper else "lower"
    batches = ", ".join(f"{edge.batch:,}" for edge in found)
    question = {
        "warmup": f"The best warmup is at the {side} end of the grid at batch {batches}",
        "batch": f"{first.metric.word.capitalize()} holds up to the largest batch, {batches}",
    }.get(first.key, f"The best rate is at the {side} end of the grid at batch {batches}")
    blank = Proposal(question=question, unit="epochs" if first.key == "warmup" else "")
    added: list[Config] = []
    refused: list[str] = []
    for edge in found:
        for value in _next_values(edge):
            config = change_setting(edge.outermost.config, edge.key, value)
            try:
                read_run_spec(config)
            except ValueError as error:
                refused.append(str(error).splitlines()[0])
                continue
            added += [{**config, "seed": seed} for seed in edge.outermost.seeds]
    if not added:
        return replace(blank, why=next(iter(refused), "nothing beyond the grid is possible"))
    tried = sorted({float(read_setting(config, first.key)) for config in added})
    values = ",".join(f"{v:g}" for v in tried)
    arms = [arm for edge in found for arm in edge.arms.values()]
    return propose_runs(
        arms,
        added,
        replace(blank, why=f"the best may lie beyond what was tried, as {first.key}={values}"),
    )


def _next_values(edge: Edge) -> list[float]:
    """Up to two values beyond the end, in the steps of the grid.

    Warmups go up to the next milestone, or halfway to the end of training if they would reach it.
    """
    scaled = [value * edge.factor for value in edge.arms]
    if edge.key == "batch":
        return [int(2 * scaled[-1])]
    if not edge.is_upper and edge.key == "warmup":
        return [0.0]
    end, beside = (scaled[-1], scaled[-2]) if edge.is_upper else (scaled[0], scaled[1])
    most = log(_LARGEST_STEP)
    step = exp(min(max(log(end / beside), -most), most)) if beside else 2.0
    step = step if abs(log(step)) > log(_SMALLEST_STEP) else (2.0 if edge.is_upper else 0.5)
    found = [float(f"{end * step**i:.4g}") for i in (1, 2)]
    if edge.key != "warmup":
        return found
    config = list(edge.arms.values())[-1].config
    last = min((m for m in config["schedule"].get("milestones") or () if m > end), default=inf)
    found = [value for value in found if value <= last] or [float(last)]
    trained = {**config, "percent": 100}.get(config.get("warmup_unit") or "epochs") or inf
    return [value for value in found if value < trained] or [float(f"{(end + trained) / 2:.4g}")]
