"""The text about a question, after each look and at its end, and the record kept of it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isinf
from pathlib import Path
from typing import Any

from analysis.sequential.looks import Interval, Looks
from analysis.sequential.question import Question
from analysis.sequential.rule import Best, Course, NoWorse, Rule
from sweeper.spec.sentences import several
from sweeper.store.publish import publish_json, read_as
from sweeper.store.questions import FOLDER, Record


def describe_verdict(question: Question, rule: Rule) -> str:
    """The answer according to the looks so far, with intervals."""
    if isinstance(rule, Best):
        return _describe_best(question, rule)
    return " ".join(_describe_arm(question, rule, arm) for arm in rule.answers)


def _describe_best(question: Question, rule: Best) -> str:
    names = [arm.name for arm in question.arms]
    margin = _format_amount(question, question.margin)
    within = f", or at most {margin} below the best" if question.margin else ""
    if rule.best is not None:
        others = [(j, pair) for (i, j), pair in rule.pairs.items() if i == rule.best]
        latest = max(pair.n for _, pair in others)  # earlier excluded arms have fewer
        nearest, pair = min((o for o in others if o[1].n == latest), key=lambda o: o[1].low)
        ahead = _describe_side(question, pair, f" than {names[nearest]}, the nearest,")
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
        f"{names[leader]} {_describe_side(question, pair, f' than {names[j]}')}"
        for j, pair in sorted(others, key=lambda other: other[1].mean)
    ]
    out = [names[i] for i in range(len(names)) if not rule.in_it[i]]
    worse = f"; worse than another: {', '.join(out)}" if out else ""
    text = f"which is best is not decided{': ' if apart else ''}{'; '.join(apart)}"
    return f"{text}{worse}{_describe_lost(question, rule)}."


def _describe_arm(question: Question, rule: NoWorse, arm: int) -> str:
    answer, interval = rule.answers[arm], rule.intervals.get(arm)
    word = {True: "no worse", False: "worse", None: "not decided"}[answer]
    if answer is False:
        word += f", by {_format_amount(question, question.margin)} or more"
    shown = f" ({_describe_side(question, interval)})" if interval else ""
    is_lost = rule.lost[[arm, rule.reference]].any()
    lost = _describe_lost(question, rule) if is_lost else ""
    return f"{question.arms[arm].name}: {word}{shown}{lost}."


def _describe_side(question: Question, interval: Interval, than: str = "") -> str:
    """Whether the first is better or worse than the second, by how much."""
    is_worse = interval.seeds is None and interval.mean < 0
    shown = interval.negate() if is_worse else interval
    return f"{'worse' if is_worse else 'better'}{than} {_format_interval(question, shown)}"


def _describe_lost(question: Question, rule: Rule) -> str:
    names = [arm.name for arm, lost in zip(question.arms, rule.lost, strict=True) if lost]
    return f"; runs diverged, the worst result: {', '.join(names)}" if names else ""


def _format_amount(question: Question, value: float) -> str:
    return f"{100 * value:.3g} points" if question.metric.unit == "%" else f"{value:.4g}"


def _format_interval(question: Question, interval: Interval) -> str:
    scale = 100 if question.metric.unit == "%" else 1
    if interval.seeds is not None:
        return f"in {(interval.seeds > 0).sum()} of {several(interval.n, 'seed')}"
    low, high = scale * interval.low, scale * interval.high
    ends = f"95 % over all looks: {low:.3g} to {high:.3g}"
    if isinf(interval.low):
        ends = "the same at every seed: no interval"
    return f"by {_format_amount(question, interval.mean)} ({ends}; {several(interval.n, 'seed')})"


def has_no_spread(rule: Rule) -> bool:
    """Whether every difference that the latest look compared was the same at every seed."""
    found = [*(rule.pairs if isinstance(rule, Best) else rule.intervals).values()]
    latest = max((interval.n for interval in found), default=0)
    return all(not interval.spread for interval in found if interval.n == latest)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's place among those of a results folder.

    Attributes:
        path: the file for its plan and answer.
        number: which question of the folder it is, from 1.
        num_before: how many of its runs had a result before it was asked.
        place: both in words.
    """

    path: Path
    number: int
    num_before: int
    place: str


def find_record(question: Question, looks: Looks, results: Path, num_known: int) -> Asked:
    """Where a question stands among those of the folder; `num_known` of its runs have a result.

    A question is known by its metric, runs and what it asks of them, not by its words.

    Raises:
        ValueError: if another question about some of these runs has another plan: planning looks
            again after seeing results makes errors more frequent than guaranteed.
    """
    ids = [[arm.runs[seed].run_id for seed in question.seeds] for arm in question.arms]
    about = [question.metric.name, ids, question.reference, question.margin, looks.at]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    own, runs, others = results / FOLDER / f"{name}.json", {*chain.from_iterable(ids)}, 0
    number, num_before = 0, num_known
    for path in sorted(own.parent.glob("[!.]*.json")):
        if (before := read_as(Record, path)) is None:
            msg = (
                f"{path} must be readable, as it says with which seeds a question was asked "
                "before; got other content. Restore it, or remove it and ask with new seeds."
            )
            raise ValueError(msg)
        if path == own:
            number, num_before = before.number, before.num_before
            continue
        others += 1
        is_same = before.metric == question.metric.name and runs & {*before.planned, *before.runs}
        plans = [[*plan] for plan in (before.seeds, before.looks_at, question.seeds, looks.at)]
        if is_same and plans[:2] != plans[2:]:
            msg = (
                "seed and the looks must be those with which questions about these runs were "
                f"started; {before.question!r} was started with "
                f"seed={','.join(map(str, before.seeds))} and "
                f"looks after {', '.join(map(str, before.looks_at))} seeds ({path}). Give "
                "those, or ask with seeds that no question has used."
            )
            raise ValueError(msg)
    number = number or 1 + others
    errors = f", which err in up to {min(100, 5 * number)} % together" if number > 1 else ""
    place = f"Question {number} of this folder{errors}; {num_before} of its {len(runs)} runs had a "
    place += "result before it was asked"
    place += ": if these suggested it, no error rate holds." if num_before else "."
    return Asked(own, number, num_before, place)


def record_question(asked: Asked, question: Question, looks: Looks, **found: Any) -> None:
    """Store a question's plan and what is known of its answer."""
    content = {
        "question": question.text,
        "metric": question.metric.name,
        "arms": [arm.name for arm in question.arms],
        "seeds": question.seeds,
        "looks_at": looks.at,
        "planned": [run.run_id for arm in question.arms for run in arm.runs.values()],
        "number": asked.number,
        "num_before": asked.num_before,
        "place": asked.place,
        **found,
    }
    asked.path.parent.mkdir(exist_ok=True)
    publish_json(asked.path, content)


def describe_end(
    question: Question, rule: Rule, course: Course, why: str, runs: Sequence[str]
) -> str:
    """The final sentences: the answer, why it ended, and counts of looks and of runs."""
    of_all = len(question.arms) * len(question.seeds)
    looks = several(course.looks, "look")
    counts = f"{looks}, {several(len(runs), 'run')} used, {of_all - len(runs)} of {of_all} left out"
    return f"{describe_verdict(question, rule)}\n{why} {counts}."
