"""The text about a question, after each look and at its end, and the record kept of it."""

import hashlib
import json
from collections.abc import Sequence
from math import isinf
from pathlib import Path
from typing import Any

from analysis.sequential.looks import Interval, Looks
from analysis.sequential.question import Question
from analysis.sequential.rule import Best, Bounds, Course, Rule
from sweeper.spec.sentences import several
from sweeper.store.publish import publish_json, read_as
from sweeper.store.questions import FOLDER, Record


def describe_verdict(question: Question, rule: Rule) -> str:
    """The answer according to the looks so far, with intervals."""
    if isinstance(rule, Best):
        return _describe_best(question, rule)
    if question.is_each:
        return " ".join(_describe_contrast(question, rule, k) for k in range(len(rule.answers)))
    verdict = {True: "reproduced", False: "contradicted", None: "not decided"}[rule.answer]
    named = zip(question.names, rule.intervals, strict=True)
    parts = [f"{name} {_format_interval(question, found)}" for name, found in named if found]
    shown = f" ({'; '.join(parts)})" if parts else ""
    return f"{question.text}: {verdict}{shown}{_describe_lost(question, rule)}."


def _describe_best(question: Question, rule: Best) -> str:
    names = [arm.name for arm in question.arms]
    margin = _format_amount(question, question.margin)
    within = f", or at most {margin} below the best" if question.margin else ""
    if rule.best is not None:
        others = [(j, pair) for (i, j), pair in rule.pairs.items() if i == rule.best]
        latest = max(pair.n for _, pair in others)  # earlier excluded arms have fewer
        nearest, pair = min((o for o in others if o[1].n == latest), key=lambda o: o[1].low)
        ahead = f"better than {names[nearest]}, the nearest, {_format_interval(question, pair)}"
        lead = f"{names[rule.best]} is best of {len(names)}{within}: {ahead}"
        return f"{lead}{_describe_lost(question, rule)}."
    left = [i for i in range(len(names)) if rule.open_arms[i]]
    pairs = {i: [(j, rule.pairs[i, j]) for j in left if (i, j) in rule.pairs] for i in left}
    leader, others = max(
        pairs.items(),
        key=lambda arm: min((pair.mean for _, pair in arm[1]), default=0.0),
        default=(0, []),
    )
    apart = [
        f"{names[leader]} better than {names[j]} {_format_interval(question, pair)}"
        for j, pair in sorted(others, key=lambda other: other[1].mean)
    ]
    out = [names[i] for i in range(len(names)) if not rule.in_it[i]]
    worse = f"; worse than another: {', '.join(out)}" if out else ""
    text = f"which is best is not decided{': ' if apart else ''}{'; '.join(apart)}"
    return f"{text}{worse}{_describe_lost(question, rule)}."


def _describe_contrast(question: Question, rule: Bounds, k: int) -> str:
    interval, name = rule.intervals[k], question.names[k]
    word = {True: "no worse", False: "worse", None: "not decided"}[rule.answers[k]]
    if rule.contrasts.uses_any(rule.lost)[k]:
        return f"{name}: not decided, as runs diverged{_describe_lost(question, rule)}."
    if rule.answers[k] is False:
        word += f", by {_format_amount(question, question.margin)} or more"
    shown = f" (better {_format_interval(question, interval)})" if interval else ""
    return f"{name}: {word}{shown}."


def _describe_lost(question: Question, rule: Rule) -> str:
    names = [arm.name for arm, lost in zip(question.arms, rule.lost, strict=True) if lost]
    return f"; not compared, as a run diverged: {', '.join(names)}" if names else ""


def _format_amount(question: Question, value: float) -> str:
    return f"{100 * value:.3g} points" if question.metric.unit == "%" else f"{value:.4g}"


def _format_interval(question: Question, interval: Interval) -> str:
    scale = 100 if question.metric.unit == "%" else 1
    low, high = scale * interval.low, scale * interval.high
    ends = f"95 % over all looks: {low:.3g} to {high:.3g}"
    if isinf(interval.half):
        ends = "the same at every seed: no interval"
    return f"by {_format_amount(question, interval.mean)} ({ends}; {several(interval.n, 'seed')})"


def has_no_spread(rule: Rule) -> bool:
    """Whether every difference that the latest look compared was the same at every seed."""
    every = rule.pairs.values() if isinstance(rule, Best) else rule.intervals
    found = [interval for interval in every if interval]
    latest = max((interval.n for interval in found), default=0)
    return all(isinf(interval.half) for interval in found if interval.n == latest)


def find_record(question: Question, looks: Looks, results: Path) -> Path:
    """The file for a question's plan and answer.

    Raises:
        ValueError: if it was begun with another plan that has some of these seeds: planning looks
            again after seeing results makes errors more frequent than guaranteed.
    """
    settings = [
        {key: text for key, (text, _) in arm.runs[question.seeds[0]].words.items() if key != "seed"}
        for arm in question.arms
    ]
    about = [question.text.replace("=", " ").split(), question.metric.name, settings]
    subject, plan = (
        hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
        for content in (about, [question.seeds, looks.at])
    )
    own = results / FOLDER / f"{subject}-{plan}.json"
    for path in sorted(own.parent.glob(f"{subject}-*.json")):
        if path == own:
            continue
        if (before := read_as(Record, path)) is None:
            msg = (
                f"{path} must be readable, as it says with which seeds {question.text!r} was asked "
                "before; got other content. Restore it, or remove it and ask with new seeds."
            )
            raise ValueError(msg)
        if set(before.seeds) & set(question.seeds):
            msg = (
                "seed and the looks must be those that the question was started with; "
                f"{question.text!r} was started with "
                f"seed={','.join(map(str, before.seeds))} and "
                f"looks after {', '.join(map(str, before.looks_at))} seeds ({path}). Give "
                "those, or ask again with seeds that were not used for it."
            )
            raise ValueError(msg)
    return own


def record_question(path: Path, question: Question, looks: Looks, **found: Any) -> None:
    """Store a question's plan and what is known of its answer."""
    content = {
        "question": question.text,
        "metric": question.metric.name,
        "arms": [arm.name for arm in question.arms],
        "seeds": question.seeds,
        "looks_at": looks.at,
        **found,
    }
    path.parent.mkdir(exist_ok=True)
    publish_json(path, content)


def describe_end(
    question: Question, rule: Rule, course: Course, why: str, runs: Sequence[str]
) -> str:
    """The final sentences: the answer, why it ended, and counts of looks and of runs."""
    of_all = len(question.arms) * len(question.seeds)
    looks = several(course.looks, "look")
    counts = f"{looks}, {several(len(runs), 'run')} used, {of_all - len(runs)} of {of_all} left out"
    return f"{describe_verdict(question, rule)}\n{why} {counts}."
