"""The open questions about batch, warmup and learning rate, answered from the runs in words."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.stats.breaking import breaking_batch
from analysis.stats.optimum import Optima, best_lrs, best_warmups, exponent
from analysis.stats.replicates import DRAWS, Estimate
from analysis.stats.rules import compare_rules
from analysis.stats.target import critical_batch, to_target
from analysis.studies import AXES, studies

_SEED = 20170608

#: Share of an accuracy within reach that counts as trained, if no target is given.
TARGET_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and what these runs say.

    Attributes:
        question: in words.
        words: the answer, with interval, seeds and limits.
        table: numbers behind it; may have no rows.
    """

    question: str
    words: str
    table: pd.DataFrame


def answers(
    runs: pd.DataFrame, curves: pd.DataFrame, target: float | None = None, draws: int = DRAWS
) -> list[Answer]:
    """Answer what the largest study among the runs can answer.

    Args:
        runs: one row per run.
        curves: one row per run and epoch; uses `val_accuracy`, `step`, `examples_seen`.
        target: accuracy that counts as trained (0 to 1); if None, 98 % of what three batches
            reach with every seed.
        draws: of the bootstrap.
    """
    rng = np.random.default_rng(_SEED)
    study = studies(runs)[0].runs
    rules = study["lr_rule"].value_counts()
    one_rule = study[study["lr_rule"] == rules.index[0]]
    rates = studies(runs, (*AXES, "base_lr"))[0].runs
    return [
        _warmup(one_rule, rng, draws),
        _learning_rate(rates, rng, draws),
        _breaking(one_rule, rng, draws),
        _critical(one_rule, curves, target, rng, draws),
    ]


def number(estimate: Estimate, unit: str = "") -> str:
    """An estimate in words: value, interval, seeds and limits.

    Args:
        estimate: any.
        unit: written after the value.
    """
    if np.isnan(estimate.value):
        return f"not decidable: {estimate.note}"
    text = f"{estimate.value:,.4g}{unit}"
    if estimate.low == -np.inf and estimate.high == np.inf:
        text += " (95 %: anything; these runs do not determine it)"
    elif estimate.has_interval:
        text += f" (95 %: {estimate.low:,.4g} to {estimate.high:,.4g})"
    text += f", {estimate.num_seeds} seeds a point"
    return f"{text}; {estimate.note}" if estimate.note else text


def _warmup(runs: pd.DataFrame, rng: np.random.Generator, draws: int) -> Answer:
    question = "How does the best warmup grow with the batch?"
    return _optimum(question, best_warmups(runs, rng, draws), "warmups")


def _optimum(question: str, optima: Optima, name: str) -> Answer:
    table = optima.table()
    if len(table) < 2:
        words = f"Not decidable: two or more batches with three or more {name} each are needed."
        return Answer(question, words, table)
    found = exponent(optima)
    start = "" if np.isnan(found.value) else "As batch to the power "
    return Answer(question, f"{start}{number(found)}.".capitalize(), table)


def _learning_rate(runs: pd.DataFrame, rng: np.random.Generator, draws: int) -> Answer:
    question = "Which learning-rate rule explains the best rates?"
    warmups = runs["warmup_epochs"].value_counts()
    optima = best_lrs(runs[runs["warmup_epochs"] == warmups.index[0]], rng, draws)
    answer = _optimum(question, optima, "learning rates")
    if len(optima.batches) < 3:
        return answer
    comparison = compare_rules(optima)
    if not len(comparison.table):
        return answer
    best = comparison.table.iloc[0]
    frequency = "" if pd.isna(best["frequency"]) else f", first in {best['frequency']:.0%} of draws"
    words = f"{answer.words} Lowest AICc: {best['rule']}{frequency}. {comparison.note}".strip()
    return Answer(question, words, comparison.table)


def _breaking(runs: pd.DataFrame, rng: np.random.Generator, draws: int) -> Answer:
    question = "At which batch does accuracy break (0.5 points below the smallest batch)?"
    finished = runs[(runs["outcome"] == "finished") & runs["val_accuracy"].notna()]
    spans = finished.groupby("warmup_epochs").agg(
        batches=("global_batch", "nunique"), accuracy=("val_accuracy", "mean")
    )
    if not len(spans) or spans["batches"].max() < 2:
        return Answer(question, "Not decidable: two or more batches are needed.", pd.DataFrame())
    warmup = spans.sort_values(["batches", "accuracy"]).index[-1]
    found = breaking_batch(finished[finished["warmup_epochs"] == warmup], rng, 0.005, draws)
    words = f"At {number(found, ' examples')} (warmup {warmup:g} epochs)."
    return Answer(question, words, pd.DataFrame())


def _critical(
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    target: float | None,
    rng: np.random.Generator,
    draws: int,
) -> Answer:
    question = "Beyond which batch do examples to target double (critical batch)?"
    if target is None:
        target = TARGET_SHARE * _within_reach(runs)
    reached = to_target(runs, curves, target)
    reached = reached.sort_values("examples_to_target")
    reached = reached.drop_duplicates(["global_batch", "seed"])
    try:
        fit = critical_batch(reached, rng, draws)
    except ValueError as error:
        words = f"Not decidable at a target of {100 * target:.4g} %: {error}"
        return Answer(question, words, pd.DataFrame())
    words = (
        f"At {number(fit.critical_batch, ' examples')}; target {100 * target:.4g} %, best warmup "
        f"of each batch and seed; lack of fit F = {fit.lack_of_fit:.3g} "
        f"(p = {fit.lack_of_fit_p:.2g})."
    )
    return Answer(question, words, pd.DataFrame())


def _within_reach(runs: pd.DataFrame) -> float:
    """The final accuracy that every seed reaches at three batches, each at its best warmup."""
    best = runs.groupby(["global_batch", "seed"])["val_accuracy"].max()
    worst_seed = best.groupby("global_batch").min().sort_values(ascending=False)
    return float(worst_seed.iloc[min(2, len(worst_seed) - 1)])
