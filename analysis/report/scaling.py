"""What a table of examples to a target says about the batch, with no runs of ours."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from analysis.stats.answer import Answer, capitalize
from analysis.stats.contrasts import correct_by_holm
from analysis.stats.critical_batch import shared_noise
from analysis.stats.doubling import describe_doubling
from analysis.stats.laws import FIXED
from analysis.stats.outliers import drop_wild
from analysis.stats.powers import batch_power, costs_between, proportional_up_to
from analysis.stats.replicates import Array, Estimate, Replicates, format_interval
from sweeper.spec.sentences import several

#: Columns of settings that may grow with the batch, and their names; steps are made examples.
SETTINGS = {
    "peak_lr": "the learning rate",
    "warmup_epochs": "the warmup, in epochs,",
    "warmup_examples": "the warmup, in examples,",
    "warmup_steps": "the warmup, in examples,",
}


def judge_scaling(reached: pd.DataFrame) -> Iterator[Answer]:
    """Judge a table of what reached a target: examples, what a doubling costs, rate and warmup."""
    doubling, fit, answers = describe_doubling(reached)
    yield from answers
    if fit and doubling:
        critical = (fit.critical_batch.without or fit.critical_batch).value
        bend = (doubling.without or doubling).value if np.isnan(critical) else critical
        yield _estimate_costs(*cells_without_wild(reached), bend)
    for column in SETTINGS:
        if column in reached:
            name = f"{column.partition('_')[0].replace('peak', 'rate')}_exponent"
            yield _estimate_setting(name, *setting_by_batch(reached, column), SETTINGS[column])


def judge_speed(reached: pd.DataFrame, reference: pd.DataFrame) -> Answer:
    """Judge whether runs need suspiciously few examples for their batch, beside a reference's.

    Both tell what reached a target. At each batch of the reference's range: Welch's one-sided test
    at 5 %, corrected over batches, against its means, joined by lines in the batch as in the
    hyperbola. The runs are taken to scatter as the reference does, or more if they do; where it has
    one seed, as all of its batches tell.

    Source:
        The checker of reference convergence points in the package mlperf-logging.
    """
    (own, _), (there, wild) = cells_without_wild(reached), cells_without_wild(reference)
    question = "Do these runs need suspiciously few examples for their batch, beside the reference?"
    shared, free = shared_noise(there)
    if there.counts.min() < 2 and np.isnan(shared):
        number = several(len(there.counts), "batch")
        words = f"Not judged: the reference has one seed at {number}, so its scatter is not known."
        more = "two seeds or more at each batch of the reference, or four batches of it"
        return Answer(name="suspicious_speed", question=question, words=words, next=more)
    batches, known = own.points["global_batch"], there.points["global_batch"]
    noise = np.where(there.counts < 2, shared * there.means**2, there.mean_variances)
    lines = [np.interp(batches, known, at, np.nan, np.nan) for at in np.eye(len(known))]
    weights = np.column_stack(lines)  # shape (batches, batches of the reference)
    expected, parts = weights @ there.means, weights**2 * noise
    spread = weights @ (noise * there.counts) / own.counts
    ours = np.fmax(spread, np.where(own.counts > 1, own.mean_variances, 0.0))
    errors = np.sqrt(ours + parts.sum(1)).clip(1e-9 * expected)
    known_to = np.where(there.counts < 2, free, np.where(there.is_coarse, 1e6, there.counts - 1))
    freedom = weights @ known_to
    shares = own.means / expected - 1
    p = correct_by_holm(stats.t.sf(-shares * expected / errors, freedom.clip(1)))
    at = np.array([f"{batch:,}" for batch in batches])
    said = np.array(
        [f"{b} ({100 * s:+.0f} %, p = {q:.2g})" for b, s, q in zip(at, shares, p, strict=True)]
    )
    clauses = [
        f"yes, at {', '.join(said[p <= 0.05])}" if (p <= 0.05).any() else "",
        f"no, at {', '.join(said[p > 0.05])}" if (p > 0.05).any() else "",
        f"not judged, as the reference has {known.min():,} to {known.max():,}: "
        f"{', '.join(at[np.isnan(p)])}" if np.isnan(p).any() else "",
        f"left out of the reference: {wild}" if wild else "",
    ]  # fmt: skip
    words = "; ".join(filter(None, clauses))
    words = f"{capitalize(words)}."
    return Answer(name="suspicious_speed", question=question, words=words, is_answered=True)


def _estimate_costs(cells: Replicates, wild: str, bend: float) -> Answer:
    table = costs_between(cells)
    is_alike = (table["low"] <= 0) & (table["high"] >= 0)
    pairs = zip(table["smaller"][is_alike], table["larger"][is_alike], strict=True)
    alike = ", ".join(f"{a:,} and {b:,}" for a, b in pairs)
    is_stuck = cells.is_coarse & (cells.counts > 1)
    stuck = f"{int(is_stuck.sum())} of {several(len(cells.counts), 'batch')}"
    parts = [
        *(f"{ends}: {_format_cost(cost)}" for ends, cost in costs_around(cells, bend)),
        f"no difference is shown between {alike}" if alike else "",
        f"at {stuck} every seed measured the same, which is known to the resolution of "
        f"{cells.resolutions[0]:,.6g}, not exactly" if is_stuck.any() else "",
        f"left out: {wild}" if wild else "",
    ]  # fmt: skip
    shown = table[["cost", "low", "high"]].mul(100).map("{:.3g} %".format).replace("nan %", "")
    words = "; ".join(filter(None, parts))
    question = "What does a doubling of the batch cost, in examples to target?"
    return Answer(
        name="doubling_cost", question=question, words=f"{capitalize(words)}.",
        table=table[["smaller", "larger"]].join(shown),
        is_answered=bool(table["low"].notna().any()),
    )  # fmt: skip


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


def _estimate_setting(name: str, batches: Array, values: Array, setting: str) -> Answer:
    question = f"How does {setting} grow with the batch?"
    used = values > 0
    left_out = ", ".join(f"{batch:,.0f}" for batch in batches[~used])
    note = f" Left out, as it is 0 there: {left_out}." if left_out else ""
    if used.sum() < 3:
        words = f"Not known: three or more batches must have one.{note}"
        return Answer(name=name, question=question, words=words)
    power = batch_power(batches[used], values[used])
    inside = [f"{rule} ({b:g})" for rule, b in FIXED.items() if power.low <= b <= power.high]
    up_to = proportional_up_to(batches[used], values[used])
    words = f"As batch to the power {format_interval(power)}; rules in the interval: "
    words += f"{', '.join(inside) or 'no rule'}; in proportion to the batch up to {up_to:,.0f}."
    return Answer.of_estimate(name, question, words + note, power)
