"""Estimates for the open questions about batch, warmup and learning rate, as text."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.target import best_reached, describe_doubling, whole_seed_runs
from analysis.report import which_batch
from analysis.stats.answer import Answer
from analysis.stats.batch_limits import breaking_batch, reachable_target, to_target
from analysis.stats.laws import compare_rules, constant_rate, diffusion
from analysis.stats.optimum import Optima, best_lrs, best_warmups, exponent
from analysis.stats.pairs import rule_pairs
from analysis.stats.replicates import DRAWS, format_estimate, make_rng
from analysis.tables.comparable_runs import ComparableRuns, group_comparable, warmup_unit
from analysis.tables.metric import Measured, Metric, check_target
from analysis.tables.validity import ARM, confounds
from analysis.tables.which_runs import (
    comparable_rates,
    ended_runs,
    most_frequent_rule,
    most_frequent_warmup,
    runs_at_best_warmup,
)
from sweeper.spec.sentences import several


def estimate_all(
    measured: Measured, target: float | None = None, draws: int = DRAWS
) -> list[Answer]:
    """Estimate what the largest group of comparable runs can tell.

    The target is in the unit of the metric (accuracies: 0 to 1); if None, 2 % short of what three
    batches reach with every seed.

    Raises:
        ValueError: for an accuracy that is not from 0 to 1.
    """
    rng = make_rng()
    runs, curves, metric = measured.runs_with_metric, measured.curves, measured.metric
    check_target(target, metric.unit)
    largest, *others = group_comparable(runs)
    compared = largest.runs
    same_rule, rates = most_frequent_rule(runs), comparable_rates(runs)
    question = "How does the best warmup grow with the batch?"
    optima = best_warmups(same_rule, rng, draws, metric)
    warmups = _estimate_growth("best_warmup_exponent", question, optima, "warmups")
    breaking = _estimate_breaking(same_rule, rng, draws, metric)
    critical = _estimate_critical(Measured(same_rule, curves, metric), target, rng, draws)
    has_others = others or len(same_rule) < len(compared)
    return [
        choose_batch(measured),
        *([_describe_chosen(largest, len(runs), same_rule)] if has_others else []),
        _refuse_confounded(warmups, same_rule),
        _refuse_confounded(_estimate_rate(rates, rng, draws, metric), rates),
        _refuse_confounded(breaking, same_rule),
        _refuse_confounded(critical, same_rule),
        _refuse_confounded(_compare_rules(compared, curves, metric), compared),
        _estimate_distance(same_rule, curves, rng, draws),
    ]


def choose_batch(measured: Measured) -> Answer:
    """Which batch to train with, each at its best rate, by the largest group of comparable runs."""
    runs = comparable_rates(measured.runs_with_metric)
    words, table = which_batch.advise_batch(runs, measured.metric)
    return _refuse_confounded(
        Answer(name="best_batch", question=which_batch.QUESTION, words=words, table=table), runs
    )


def _describe_chosen(largest: ComparableRuns, count: int, same_rule: pd.DataFrame) -> Answer:
    about = f" ({largest.about})" if largest.about else ""
    num, parts = len(largest.runs), list[str]()
    if num < count:
        parts += [
            f"The largest comparable group, {num} of {count}: {largest.title}{about}.",
            "Best rates and the batch to train with use all runs that differ only in base_lr.",
        ]
    if len(same_rule) < num:
        parts.append(
            "Warmups, breaking batch, critical batch and distances use one lr_rule, that with the "
            f"most runs: {same_rule['lr_rule'].iloc[0]}, {len(same_rule)} of {num}."
        )
    question = "Which runs do these estimates use?"
    return Answer(name="runs", question=question, words=" ".join(parts), is_answered=True)


def _refuse_confounded(estimated: Answer, runs: pd.DataFrame) -> Answer:
    """An estimate, refused if the arms that it compares differ in more than the question."""
    if found := confounds(ended_runs(runs), ARM):
        why = f"the arms differ in more than the setting in question: {'; '.join(found)}"
        return Answer(name=estimated.name, question=estimated.question, words=f"Refused: {why}.")
    return estimated


def _capitalize(sentence: str) -> str:
    """Capitalise only the first letter: F, and names of metrics and rules, stay as they are."""
    return f"{sentence[0].upper()}{sentence[1:]}"


def _estimate_growth(name: str, question: str, optima: Optima, settings: str) -> Answer:
    table = optima.table()
    if len(table) < 2:
        words = f"Not run: two or more batches with three or more {settings} each are needed."
        return Answer(name=name, question=question, words=words, table=table)
    found = exponent(optima)
    start = "" if np.isnan(found.value) else "As batch to the power "
    words = _capitalize(f"{start}{format_estimate(found)}.")
    return Answer.of_estimate(name, question, words, found, table=table)


def _estimate_rate(
    runs: pd.DataFrame, rng: np.random.Generator, draws: int, metric: Metric
) -> Answer:
    question = "Which learning-rate rule explains the best rates?"
    optima = best_lrs(most_frequent_warmup(runs), rng, draws, metric=metric)
    found = _estimate_growth("best_rate_exponent", question, optima, "learning rates")
    if len(optima.batches) < 3 or optima.is_rejected:
        return found
    comparison = compare_rules(optima)
    if not len(comparison.table):
        return found
    best = comparison.table.iloc[0]
    frequency = "" if pd.isna(best["frequency"]) else f", first in {best['frequency']:.0%} of draws"
    words = f"{found.words} Lowest AICc: {best['rule']}{frequency}. {comparison.note}".strip()
    return replace(found, words=words, table=comparison.table)


def _estimate_breaking(
    runs: pd.DataFrame, rng: np.random.Generator, draws: int, metric: Metric
) -> Answer:
    worse = "below" if metric.unit == "%" else "worse than at"
    question = f"At which batch does {metric.word} break?"
    found = runs_at_best_warmup(runs, metric)
    if found is None:
        words = "Not run: two or more batches with a run that finished are needed."
        return Answer(name="breaking_batch", question=question, words=words)
    at_warmup, warmup, margin, words = found
    if margin == 0:
        words = f"Refused: there is no margin, as {words}."
        return Answer(name="breaking_batch", question=question, words=words)
    question = f"At which batch does {metric.word} break ({words} {worse} the smallest batch)?"
    estimate = breaking_batch(at_warmup, rng, margin, draws, metric)
    batches, seeds = at_warmup["global_batch"], several(estimate.num_seeds, "seed")
    low, high = f"{estimate.low:,.0f}", f"{estimate.high:,.0f}"
    if np.isinf(estimate.value):
        words = f"It did not break: {estimate.note}"
        if estimate.high < np.inf or estimate.low < batches.max():
            words += f", but with {seeds} a break from {low} on is not excluded"
    elif np.isinf(estimate.high):
        words = f"The runs do not tell whether it does: {seeds} exclude neither a break just above "
        words += f"{low} nor that there is none (95 %)"
    elif estimate.low == batches.min() and estimate.high == batches.max():
        words = f"The runs do not tell where: between {low} and {high} (95 %), {seeds}"
    else:
        words = f"At {format_estimate(estimate, ' examples')}"
    words = f"{words} (warmup {warmup:g} {warmup_unit(runs)})."
    return Answer.of_estimate("breaking_batch", question, words, estimate, unit="examples")


def _estimate_critical(
    measured: Measured, target: float | None, rng: np.random.Generator, draws: int
) -> Answer:
    runs, metric = whole_seed_runs(ended_runs(measured.runs)), measured.metric
    question = "Beyond which batch do examples to target double?"
    if not runs[metric.name].notna().any():
        words = f"Not measured: these runs have no {metric.word}."
        return Answer(name="doubling_batch", question=question, words=words)
    if target is None:
        target = reachable_target(runs, metric)
    reached = best_reached(to_target(runs, measured.curves, target, metric))
    _, _, words = describe_doubling(reached, rng, draws)
    chosen = f"Target {metric.shown(target)}, best warmup of each batch and seed."
    return Answer(name="doubling_batch", question=question, words=f"{words} {chosen}")


def _compare_rules(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Answer:
    table, margin, words = rule_pairs(runs, curves, metric)
    shown = f"margin {words}" if margin != 0 else f"no margin, as {words}"
    question = f"Does the learning-rate rule make a difference ({shown})?"
    if not len(table):
        words = "Not run: two rules at one batch and warmup, with two seeds each, are needed."
        return Answer(name="rule_difference", question=question, words=words)
    counts = table["verdict"].value_counts()
    words = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())
    together = ", judged together" if len(table) > 1 else ""
    words = f"Of {several(len(table), 'pair')} of arms{together}: {words}."
    if set(counts.index) == {"inconclusive"}:
        words = f"The runs do not distinguish the rules. {words}"
    if len(table) > 1:
        words += " An interval is that of its pair alone, not corrected for the others."
    return Answer(
        name="rule_difference", question=question, words=words, table=table, is_answered=True
    )


def _estimate_distance(
    runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator, draws: int
) -> Answer:
    question = "Is the distance from the start ultra-slow (logarithmic) or a power of the step?"
    rows: list[dict[str, Any]] = []
    parts: list[str] = []
    point = ["global_batch", "warmup_epochs"]
    of_points = dict([*curves.merge(runs[["run_id", *point]]).groupby(point)])
    for batch, at_batch in runs.groupby("global_batch"):
        series = {
            w: constant_rate(g, of_points.get((batch, w), curves.iloc[:0]))
            for w, g in at_batch.groupby("warmup_epochs")
        }
        warmup = max(series, key=lambda w: len(series[w]))
        if not len(series[warmup]):
            continue
        fit = diffusion(series[warmup], rng, draws)
        p, aicc = fit.power, fit.table.set_index("law")["aicc"]
        first, last = fit.local_exponent
        power = np.array([p.value, p.low, p.high])
        known = f", exponent {p.value:.3g} (95 %: {p.low:.3g} to {p.high:.3g})"
        if fit.verdict != "power law":  # of another law there is none
            power, known = np.full(3, np.nan), ""
        if np.isnan(p.low):
            known = " (one seed)" if p.num_seeds < 2 else " (every seed moved equally far)"
        known += f" ({p.note})" if p.without else ""
        parts.append(f"batch {batch:,}: {fit.verdict}{known}")
        rows.append(
            {
                "global_batch": batch, "warmup_epochs": warmup, "exponent": power[0],
                "low": power[1], "high": power[2], "local_first": first, "local_last": last,
                "aicc_power_minus_log": float(aicc["power"] - aicc["logarithm"]),
                "num_seeds": p.num_seeds, "verdict": fit.verdict,
            }
        )  # fmt: skip
    if not rows:
        words = (
            "Not run: runs with distance_from_start at six or more epochs of one learning "
            "rate are needed."
        )
        return Answer(name="distance_law", question=question, words=words)
    words, is_answered = _capitalize(f"{'; '.join(parts)}."), True
    table = pd.DataFrame(rows)
    return Answer(
        name="distance_law", question=question, words=words, table=table, is_answered=is_answered
    )
