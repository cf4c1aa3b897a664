"""What a table of examples to a target says about the batch, with no runs of ours."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.figures.target import describe_doubling
from analysis.report.estimates import Estimated
from analysis.stats.laws import FIXED
from analysis.stats.powers import batch_power, costs_between, proportional_up_to
from analysis.stats.replicates import Array, Estimate, Replicates, format_interval, make_rng
from analysis.stats.wild import drop_wild
from sweeper.spec.sentences import several

#: Columns of settings that may grow with the batch, and their names; steps are made examples.
SETTINGS = {
    "peak_lr": "the learning rate",
    "warmup_epochs": "the warmup, in epochs,",
    "warmup_examples": "the warmup, in examples,",
    "warmup_steps": "the warmup, in examples,",
}


def judge_scaling(reached: pd.DataFrame) -> Iterator[Estimated]:
    """Judge what `read_reached` returns: examples, what a doubling costs, rate and warmup."""
    doubling, fit, words = describe_doubling(reached, make_rng())
    yield Estimated("Beyond which batch do examples to target double?", words)
    if fit and doubling:
        critical = (fit.critical_batch.without or fit.critical_batch).value
        bend = (doubling.without or doubling).value if np.isnan(critical) else critical
        yield _estimate_costs(*cells_without_wild(reached), bend)
    for column in SETTINGS:
        if column in reached:
            yield _estimate_setting(*setting_by_batch(reached, column), SETTINGS[column])


def _estimate_costs(cells: Replicates, wild: str, bend: float) -> Estimated:
    table = costs_between(cells)
    is_alike = (table["low"] <= 0) & (table["high"] >= 0)
    pairs = zip(table["smaller"][is_alike], table["larger"][is_alike], strict=True)
    alike = ", ".join(f"{a:,} and {b:,}" for a, b in pairs)
    stuck = f"{int(cells.is_coarse.sum())} of {several(len(cells.counts), 'batch')}"
    parts = [
        *(f"{ends}: {_format_cost(cost)}" for ends, cost in costs_around(cells, bend)),
        f"no difference is shown between {alike}" if alike else "",
        f"at {stuck} every seed measured the same, which is known to the resolution of "
        f"{cells.resolutions[0]:,.6g}, not exactly" if cells.is_coarse.any() else "",
        f"left out: {wild}" if wild else "",
    ]  # fmt: skip
    shown = table[["cost", "low", "high"]].mul(100).map("{:.3g} %".format)
    words = "; ".join(filter(None, parts))
    question = "What does a doubling of the batch cost, in examples to target?"
    return Estimated(
        question, f"{words[0].upper()}{words[1:]}.", table[["smaller", "larger"]].join(shown)
    )


def cells_without_wild(reached: pd.DataFrame) -> tuple[Replicates, str]:
    """Examples to target where every seed reached it, without wild seeds; which are in words."""
    by, measure = ["global_batch"], "examples_to_target"
    whole = reached[reached.groupby(by)["reached_target"].transform("all")]
    kept, wild = drop_wild(whole.assign(outcome="finished"), by, measure)
    return Replicates.from_runs(kept, by, measure), wild


def costs_around(cells: Replicates, bend: float) -> Iterator[tuple[str, Estimate]]:
    """The power of the batch with which examples grow, over the batches on each side of one."""
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    for is_in in (batches <= bend, batches >= bend):
        if is_in.sum() > 1:
            ends = f"from {batches[is_in][0]:,.0f} to {batches[is_in][-1]:,.0f}"
            yield ends, batch_power(batches[is_in], cells.means[is_in], cells.num_seeds)


def _format_cost(power: Estimate) -> str:
    cost, low, high = (100 * (2**v - 1) for v in (power.value, power.low, power.high))
    return f"{cost:.0f} %" + (f" (95 %: {low:.0f} to {high:.0f})" if power.has_interval else "")


def setting_by_batch(reached: pd.DataFrame, column: str) -> tuple[Array, Array]:
    """The batches and the setting at each; ValueError if a batch has several."""
    by_batch = reached.dropna(subset=[column]).groupby("global_batch")[column]
    if (counts := by_batch.nunique()).max() > 1:
        msg = (
            f"{column} must be the same at all seeds of a batch; got {counts.max()} values at "
            f"{counts.idxmax()}. Give each setting a table of its own."
        )
        raise ValueError(msg)
    batches = by_batch.first().index.to_numpy(dtype=float)
    per_unit = batches if column == "warmup_steps" else 1.0
    return batches, by_batch.first().to_numpy(dtype=float) * per_unit


def _estimate_setting(batches: Array, values: Array, name: str) -> Estimated:
    question = f"How does {name} grow with the batch?"
    used = values > 0
    left_out = ", ".join(f"{batch:,.0f}" for batch in batches[~used])
    note = f" Left out, as it is 0 there: {left_out}." if left_out else ""
    if used.sum() < 3:
        return Estimated(question, f"Not known: three or more batches must have one.{note}")
    power = batch_power(batches[used], values[used])
    inside = [f"{rule} ({b:g})" for rule, b in FIXED.items() if power.low <= b <= power.high]
    up_to = proportional_up_to(batches[used], values[used])
    words = f"As batch to the power {format_interval(power)}; rules in the interval: "
    words += f"{', '.join(inside) or 'no rule'}; in proportion to the batch up to {up_to:,.0f}."
    return Estimated(question, words + note)
