"""The text about a question, after each look and at its end, and the record kept of it."""

import hashlib
import json
from collections.abc import Sequence
from math import isinf
from pathlib import Path
from typing import Any

from analysis.stats.sequential import Best, Bounds, Course, Interval, Looks, Rule
from sweeper.commands.sequential.question import Asked
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.questions import keep_question, plans_of, question_file


def verdict(asked: Asked, rule: Rule) -> str:
    """The answer according to the looks so far, with intervals."""
    if isinstance(rule, Best):
        return _of_best(asked, rule)
    assert isinstance(rule, Bounds)
    if asked.is_each:
        return " ".join(_of_one(asked, rule, k) for k in range(len(rule.answers)))
    said = {True: "reproduced", False: "contradicted", None: "not decided"}[rule.answer]
    parts = [
        f"{name} {_shown(asked, interval)}"
        for name, interval in zip(asked.names, rule.intervals, strict=True)
        if interval
    ]
    return (
        f"{asked.text}: {said}" + f" ({'; '.join(parts)})" * bool(parts) + f"{_lost(asked, rule)}."
    )


def _of_best(asked: Asked, rule: Best) -> str:
    names = [arm.name for arm in asked.arms]
    within = f", or at most {_amount(asked, asked.margin)} below the best" * bool(asked.margin)
    if rule.best is not None:
        others = [(j, pair) for (i, j), pair in rule.pairs.items() if i == rule.best]
        latest = max(pair.n for _, pair in others)  # earlier excluded arms have fewer
        nearest, pair = min((o for o in others if o[1].n == latest), key=lambda o: o[1].low)
        ahead = f"better than {names[nearest]}, the nearest, {_shown(asked, pair)}"
        said = f"{names[rule.best]} is best of {len(names)}{within}: {ahead}"
        return f"{said}{_lost(asked, rule)}."
    left = [i for i in range(len(names)) if rule.open_arms[i]]
    pairs = {i: [(j, rule.pairs[i, j]) for j in left if (i, j) in rule.pairs] for i in left}
    leader, others = max(pairs.items(), key=_least_ahead, default=(0, []))
    apart = [
        f"{names[leader]} better than {names[j]} {_shown(asked, pair)}"
        for j, pair in sorted(others, key=lambda other: other[1].mean)
    ]
    out = [names[i] for i in range(len(names)) if not rule.in_it[i]]
    worse = f"; worse than another: {', '.join(out)}" if out else ""
    said = f"which is best is not decided{': ' if apart else ''}{'; '.join(apart)}"
    return f"{said}{worse}{_lost(asked, rule)}."


def _least_ahead(arm: tuple[int, Sequence[tuple[int, Interval]]]) -> float:
    """By how much an arm is ahead of its nearest competitor."""
    return min((pair.mean for _, pair in arm[1]), default=0.0)


def _of_one(asked: Asked, rule: Bounds, k: int) -> str:
    interval, name = rule.intervals[k], asked.names[k]
    verdict = {True: "no worse", False: "worse", None: "not decided"}[rule.answers[k]]
    if rule.contrasts.using(rule.lost)[k]:
        return f"{name}: not decided, as runs diverged{_lost(asked, rule)}."
    by = f", by {_amount(asked, asked.margin)} or more" if rule.answers[k] is False else ""
    return f"{name}: {verdict}{by}" + (f" (better {_shown(asked, interval)})." if interval else ".")


def _lost(asked: Asked, rule: Best | Bounds) -> str:
    names = [arm.name for arm, lost in zip(asked.arms, rule.lost, strict=True) if lost]
    return f"; not compared, as a run diverged: {', '.join(names)}" if names else ""


def _amount(asked: Asked, value: float) -> str:
    return f"{100 * value:.3g} points" if asked.metric.unit == "%" else f"{value:.4g}"


def _shown(asked: Asked, interval: Interval) -> str:
    scale = 100 if asked.metric.unit == "%" else 1
    low, high = scale * interval.low, scale * interval.high
    ends = f"95 % over all looks: {low:.3g} to {high:.3g}"
    if isinf(interval.half):
        ends = "the same at every seed: no interval"
    return f"by {_amount(asked, interval.mean)} ({ends}; {several(interval.n, 'seed')})"


def has_no_spread(rule: Rule) -> bool:
    """Whether every difference that the latest look compared was the same at every seed."""
    assert isinstance(rule, Best | Bounds)
    every = rule.pairs.values() if isinstance(rule, Best) else rule.intervals
    found = [interval for interval in every if interval]
    latest = max((interval.n for interval in found), default=0)
    return all(isinf(interval.half) for interval in found if interval.n == latest)


def remembered(asked: Asked, looks: Looks, results: Path) -> Path:
    """The file for a question's plan and answer.

    Raises:
        ValueError: if it was begun with another plan that has some of these seeds: planning looks
            again after seeing results makes errors more frequent than guaranteed.
    """
    settings = [_settings(arm.runs[asked.seeds[0]]) for arm in asked.arms]
    about = [asked.text.replace("=", " ").split(), asked.metric.name, settings]
    digest, plan = _digest(about), _digest([asked.seeds, looks.at])
    own = question_file(results, digest, plan)
    for path, before in plans_of(results, digest).items():
        if path != own and set(before["seeds"]) & set(asked.seeds):
            msg = (
                "seed and the looks must be those that the question was started with; "
                f"{asked.text!r} was started with seed={','.join(map(str, before['seeds']))} and "
                f"looks after {', '.join(map(str, before['looks_at']))} seeds ({path}). Give "
                "those, or ask again with seeds that were not used for it."
            )
            raise ValueError(msg)
    return own


def remember(path: Path, asked: Asked, looks: Looks, **found: Any) -> None:
    """Store a question's plan and what is known of its answer."""
    content = {
        "question": asked.text,
        "metric": asked.metric.name,
        "arms": [arm.name for arm in asked.arms],
        "seeds": asked.seeds,
        "looks_at": looks.at,
        **found,
    }
    keep_question(path, content)


def ended(asked: Asked, rule: Rule, course: Course, why: str, runs: Sequence[str]) -> str:
    """The final sentences: the answer, why it ended, and counts of looks and of runs."""
    of_all = len(asked.arms) * len(asked.seeds)
    looks = several(course.looks, "look")
    counts = f"{looks}, {several(len(runs), 'run')} used, {of_all - len(runs)} of {of_all} left out"
    return f"{verdict(asked, rule)}\n{why} {counts}."


def _settings(run: RunSpec) -> dict[str, str]:
    return {key: text for key, (text, _) in run.words.items() if key != "seed"}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
