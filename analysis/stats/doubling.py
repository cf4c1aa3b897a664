"""Where examples to a target double, and E_min / S_min, as answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.answer import Answer
from analysis.stats.critical_batch import CriticalBatch, critical_batch, doubling_batch
from analysis.stats.replicates import Estimate, format_estimate, format_value
from sweeper.spec.sentences import several

_DOUBLING = "Beyond which batch do examples to target double?"
_CRITICAL = "What is the critical batch, E_min / S_min?"

#: Why some runs do not tell how many steps a target takes, and which would.
FELL = (
    "the learning rate falls before the target is reached, over a length that was given: such a "
    "run reaches it near its end, whatever the batch needs"
)
STEADY = (
    "Run again with schedule=constant or schedule=wsd, or with epochs=10,14,20,28,40: of runs of "
    "several lengths the shortest that reach the target count."
)


def describe_doubling(
    reached: pd.DataFrame, settings: Mapping[str, Any] | None = None
) -> tuple[Estimate | None, CriticalBatch | None, list[Answer]]:
    """Where examples to target double, the hyperbola's `E_min / S_min`, and both as answers.

    Args:
        reached: what `to_target` returns.
        settings: what the answers hold for, such as the target.
    """
    given = dict(settings or {})
    try:
        doubling = doubling_batch(reached)
    except ValueError as error:
        rule, _, remedy = str(error).rpartition(". ")
        if np.any(reached.get("rate_fell", False)):
            rule, remedy = FELL, STEADY
        return None, None, unanswered(f"Not answered: {rule}.", remedy, given)
    remedy = ""
    try:
        fit = critical_batch(reached)
        ratio, words = fit.critical_batch, _say_ratio(fit)
    except ValueError as error:
        fit, ratio = None, Estimate(np.nan, np.nan, np.nan, 0, "")
        rule, _, remedy = str(error).rpartition(". ")
        words = f"No E_min / S_min: {rule}."
    batches = sorted(reached["global_batch"].unique())
    first = doubling.method.partition(", ")[2].partition(";")[0]
    value = doubling.value if np.isfinite(doubling.value) else np.nan
    next_steps = [_next(each.without or each, reached) for each in (doubling, ratio)]
    answers = [
        Answer(
            name="doubling_batch", question=_DOUBLING, words=_say_doubling(doubling, batches),
            value=value, low=doubling.low, high=doubling.high, unit="examples",
            settings={**given, "definition": first, **_without(doubling)}, next=next_steps[0],
        ),
        Answer.of_estimate(
            "critical_batch", _CRITICAL, words, ratio, unit="examples",
            settings={**given, "definition": "E_min/S_min", **_without(ratio)},
            next=remedy or next_steps[1],
        ),
    ]  # fmt: skip
    return doubling, fit, answers


def _without(found: Estimate) -> dict[str, Any]:
    """The numbers without wild seeds, if there are any."""
    less = found.without
    return (
        {"without_wild": {"value": less.value, "low": less.low, "high": less.high}} if less else {}
    )


def _next(found: Estimate, reached: pd.DataFrame) -> str:
    """A larger batch where there is no upper bound, more seeds where there is none at all."""
    if "seed" not in reached or "run_id" not in reached or np.isfinite(found.high):
        return ""
    if np.isfinite(found.low):
        return f"python -m sweeper -m batch={2 * int(reached['global_batch'].max())}"
    last = int(reached["seed"].max()) + 1
    return f"python -m sweeper -m seed={last},{last + 1},{last + 2}"


def unanswered(why: str, remedy: str, settings: Mapping[str, Any]) -> list[Answer]:
    """Both questions, with why these runs do not answer them."""
    asked = {"doubling_batch": _DOUBLING, "critical_batch": _CRITICAL}
    return [
        Answer(name=name, question=question, words=why, settings=settings, next=remedy)
        for name, question in asked.items()
    ]


def _say_doubling(found: Estimate, batches: list[int]) -> str:
    low, high = f"{found.low:,.0f}", f"{found.high:,.0f}"
    twice = "are twice those of the smallest batch"
    limits = f"{several(found.num_seeds, 'seed')} per point"
    limits = "; ".join(filter(None, [limits, found.note]))
    if np.isfinite([found.low, found.high]).all():
        place = f"at about {format_value(found.value, found.high - found.low)}, "
        place = place if np.isfinite(found.value) else ""
        text = f"{twice} {place}between {low} and {high} (95 %)"
    elif np.isfinite(found.high):
        text = f"{twice} at the latest at {high} (95 %)"
    elif np.isfinite(found.low):
        nowhere = found.low >= batches[-1]
        text = f"{twice} at no batch that was run: not up to {low} (95 %)"
        text = text if nowhere else f"do not double up to {low} (95 %); beyond it is not decided"
    else:
        place = format_value(found.value) if np.isfinite(found.value) else "no batch that was run"
        text = f"{twice} at {place}, as far as the means tell: no bound is shown"
    return f"Examples to target {text}, {limits}."


def _say_ratio(fit: CriticalBatch) -> str:
    found = fit.critical_batch
    if not np.isnan(found.value):
        text = f"E_min / S_min of the hyperbola: {format_estimate(found, ' examples')}"
        if f"F = {fit.lack_of_fit:.3g}" not in found.note and not np.isnan(fit.lack_of_fit):
            text += f"; lack of fit F = {fit.lack_of_fit:.3g} (p = {fit.lack_of_fit_p:.2g})"
    elif np.isfinite(found.low) or np.isfinite(found.high):
        side, end = ("above", found.low) if np.isfinite(found.low) else ("below", found.high)
        text = f"E_min / S_min is {side} {format_value(end)} (95 %): {found.note}"
    else:
        text = f"No E_min / S_min: {found.note}"
    return f"{text}."
