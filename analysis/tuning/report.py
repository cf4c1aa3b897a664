"""Results of tuned studies as text: best settings, edges, rules, critical batch."""

import textwrap
from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.stats.answer import Answer
from analysis.stats.doubling import describe_doubling
from analysis.stats.laws import compare_rules
from analysis.stats.optimum import Optima, exponent
from analysis.stats.replicates import Estimate, format_estimate, make_rng
from analysis.tuning.rates import FEWEST_BATCHES, joint_table, regret, tuned_optima
from analysis.tuning.studies import Tuned, best_trials, steps_to_target, tuned_confounds
from sweeper.spec.sentences import several


def describe_studies(tuned: Tuned, curves: pd.DataFrame, target: float | None) -> Iterator[str]:
    """Everything that the studies can answer."""
    rng = make_rng()
    best = best_trials(tuned)
    counts = tuned.trials["outcome"].value_counts()
    ended = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    yield f"{several(len(tuned.studies), 'study')} of {tuned.metric.label}: {ended}."
    columns = ["study", "global_batch", *tuned.space, "value", "num_finished", "num_diverged"]
    yield _format("Best trial of each study", best[columns]) if len(best) else "No trial finished."
    for _, row in best[best["advice"] != ""].iterrows():
        yield f"{row['study']}: {row['advice']}."
    keys = [*(["peak_lr"] if tuned.rate else []), *tuned.numbers()]
    optima = {key: tuned_optima(tuned, key, rng) for key in keys}
    for key, found in optima.items():
        if len(found.batches):
            title = f"Best {key} at each batch, 95 % bootstrap; joint: all batches at once"
            title = "; ".join(filter(None, [title, found.note]))
            yield _format(title, _show_edges(found, joint_table(found, log=tuned.is_log(key))))
    if confounded := tuned_confounds(tuned):
        reasons = "; ".join(confounded)
        yield f"Refused: batches differ in more than the setting in question: {reasons}."
    elif "peak_lr" in optima and len(optima["peak_lr"].batches) >= FEWEST_BATCHES:
        yield from _describe_rules(tuned, optima["peak_lr"])
    if target is not None and not confounded:
        reached = steps_to_target(tuned, curves, target)
        shown = ["study", "global_batch", "steps_to_target", "examples_to_target", "advice"]
        goal = f"{tuned.metric.name} {target:g}"
        yield _format(f"Fewest steps to {goal} of any trial", reached[shown])
        yield from (answer.text() for answer in describe_doubling(reached)[2])


def answer_studies(tuned: Tuned, curves: pd.DataFrame, target: float | None) -> Iterator[Answer]:
    """The best settings at each batch, how they grow, and the critical batch, as answers."""
    rng, confounded = make_rng(), "; ".join(tuned_confounds(tuned))
    refused = f"Refused: batches differ in more than the setting in question: {confounded}."
    for key in [*(["peak_lr"] if tuned.rate else []), *tuned.numbers()]:
        found, name = tuned_optima(tuned, key, rng), "rate" if key == "peak_lr" else key
        rows = found.table()[["global_batch", "best", "low", "high", "note"]]
        for batch, best, low, high, note in rows.itertuples(index=False):
            at = Estimate(best, low, high, found.num_seeds, "", note)
            question = f"Which {key} is best at batch {batch:,}?"
            words = f"{key} {format_estimate(at)}."
            settings = {"batch": batch, "setting": key}
            yield Answer.of_estimate(f"best_{name}", question, words, at, settings=settings)
        name, question = f"best_{name}_exponent", f"How does the best {key} grow with the batch?"
        if confounded:
            yield Answer(name=name, question=question, words=refused)
        elif len(found.batches):
            power = exponent(found)
            words = f"As batch to the power {format_estimate(power)}."
            yield Answer.of_estimate(name, question, words, power, settings={"setting": key})
    if target is None:
        return
    if confounded:
        question = "What is the critical batch, from tuned steps to the target?"
        yield Answer(name="critical_batch", question=question, words=refused)
    else:
        yield from describe_doubling(steps_to_target(tuned, curves, target), {"target": target})[2]


def _show_edges(optima: Optima, table: pd.DataFrame) -> pd.DataFrame:
    """The table with values beyond the tuned range, -inf too, as the side on which they lie."""

    def show(value: float, low: float, high: float) -> str:
        if value < low or value > high:
            return f"below {low:g}" if value < low else f"above {high:g}"
        return "none" if np.isnan(value) else f"{value:.4g}"

    names = ["best", "low", "high", "joint_low", "joint_high"]
    ends = optima.low_edge, optima.high_edge
    return table.assign(**{name: list(map(show, table[name], *ends)) for name in names})


def _describe_rules(tuned: Tuned, optima: Optima) -> Iterator[str]:
    compared = compare_rules(optima)
    bend = compared.bends["saturating"]
    if not len(compared.table):
        yield f"No rule can be fitted to the tuned rates: {optima.note or compared.note}."
    else:
        yield _format(f"Rules fitted to the tuned rates. {compared.note}".strip(), compared.table)
    if not np.isnan(bend.value):
        yield f"If the saturating rule holds, it bends at batch {_format_estimate(bend)}."
    yield _format("Regret of each rule's rate against the tuned one", regret(tuned, optima))


def _format_estimate(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.4g}, {estimate.high:.4g}]" if estimate.has_interval else ""
    return f"{estimate.value:.4g}{interval} ({estimate.method}) {estimate.note}".strip()


def _format(title: str, frame: pd.DataFrame) -> str:
    text = frame.to_string(index=False, float_format=lambda value: f"{value:.4g}")
    return f"{title}\n{textwrap.indent(text, '  ')}"
