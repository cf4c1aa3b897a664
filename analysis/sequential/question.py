"""The questions that a sequential sweep answers, as people type them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.papers import PAPERS
from analysis.papers.claim import point_masks
from analysis.papers.paper import place_runs
from analysis.sequential.looks import Looks
from analysis.sequential.rule import Best, Bounds, Rule
from analysis.stats.contrasts import Contrasts
from analysis.stats.replicates import Array
from analysis.tables.metric import Metric
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import did_you_mean, several
from sweeper.store.row import planned_columns

_FORMS = (
    'Write one of "best KEY at KEY VALUE ... within M points", "no worse than base_batch at KEY '
    'VALUE ... within M points" (or another KEY VALUE in place of base_batch), and "claim N of '
    'PAPER".'
)
#: Student's t intervals need this many to be useful.
LEAST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the points that are compared, with a run for each seed."""

    name: str
    runs: Mapping[int, RunSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about arms.

    Attributes:
        text: as typed.
        arms: compared with each other at the same seeds.
        metric: the metric by which they are compared.
        contrasts: combinations of arms that must lie between bounds; None to find the best arm.
        names: names of the contrasts.
        margin: the largest difference that does not matter, in the metric's unit.
        is_each: whether each contrast has an answer of its own.
        sign: the factor on values before arms are compared: a paper's contrasts are of the metric
            as it is; otherwise more is better.
    """

    text: str
    arms: Sequence[Arm]
    metric: Metric
    contrasts: Contrasts | None = None
    names: Sequence[str] = ()
    margin: float = 0.0
    is_each: bool = False
    sign: float = 1.0

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the grid."""
        return list(self.arms[0].runs)

    def rule(self, looks: Looks) -> Rule:
        """The rule that answers it, before any look."""
        if self.contrasts is None:
            return Best(len(self.arms), looks, self.margin)
        return Bounds(self.contrasts, looks, self.is_each)


def parse_question(text: str, points: Sequence[RunSpec], metric: Metric) -> Question:
    """Read a question about the points of a grid.

    Raises:
        ValueError: if it cannot be parsed, names what the grid lacks, or compares points that
            differ in more than it asks about.
    """
    words = " ".join(text.replace("=", " ").split())
    for pattern, read in _READERS.items():
        if found := re.fullmatch(pattern, words):
            question = read(text, found, points, metric)
            _check_arms(question.arms)
            return question
    msg = f"question must have one of the known forms; got question={text!r}. {_FORMS}"
    raise ValueError(msg)


def _read_best(
    text: str, found: re.Match[str], points: Sequence[RunSpec], metric: Metric
) -> Question:
    key = found["key"]
    arms = _make_arms(key, _select_points(found["at"], points))
    if len(arms) < 2:
        msg = (
            f"question must leave two or more values of {key} to compare; got question={text!r}, "
            f"with one in the grid: {arms[0].name}. Give {key} more values."
        )
        raise ValueError(msg)
    margin = _read_margin(text, found, metric)
    return Question(text=text, arms=arms, metric=metric, margin=margin, sign=metric.sign)


def _read_no_worse(
    text: str, found: re.Match[str], points: Sequence[RunSpec], metric: Metric
) -> Question:
    points = _select_points(found["at"], points)
    key, value = found["key"], found["value"]
    if found["base"]:
        key, value = "batch", points[0].words["base_batch"][0]
    arms = _make_arms(key, points)
    same = [i for i, arm in enumerate(arms) if _is_same_value(arm.name.partition("=")[2], value)]
    if not same or len(arms) < 2:
        shown = ", ".join(arm.name for arm in arms)
        msg = (
            f"question needs {key}={value} and another value of {key} in the grid; got "
            f"question={text!r}, the grid has {shown}. Add the missing value."
        )
        raise ValueError(msg)
    others = [i for i in range(len(arms)) if i != same[0]]
    margin = _read_margin(text, found, metric)
    pairs = [(i, same[0]) for i in others]
    return Question(
        text=text,
        arms=arms,
        metric=metric,
        contrasts=Contrasts.pairs(*pairs, num_arms=len(arms), lower=-margin),
        names=[arms[i].name for i in others],
        margin=margin,
        is_each=True,
        sign=metric.sign,
    )


def _read_claim(
    text: str, found: re.Match[str], points: Sequence[RunSpec], metric: Metric
) -> Question:
    del metric  # a claim has its own
    paper = PAPERS.get(found["paper"])
    if paper is None:
        hint = did_you_mean(found["paper"], list(PAPERS))
        msg = f"question must name a paper among {', '.join(PAPERS)}; got {text!r}. {hint}"
        raise ValueError(msg.rstrip())
    number = int(found["number"])
    if not 1 <= number <= len(paper.claims):
        claims = "; ".join(f"{i}: {claim.text}" for i, claim in enumerate(paper.claims, 1))
        msg = f"question must name a claim of {paper.name} by its number; got {text!r}. {claims}."
        raise ValueError(msg)
    claim = paper.claims[number - 1]
    if claim.contrasts is None or claim.only_there:
        why = claim.only_there or "it is about a fitted optimum, not about points"
        msg = (
            f"question must be a claim that can be judged seed by seed; got {text!r} ({claim.text})"
            f": {why}. `python -m analysis claims` judges what it can."
        )
        raise ValueError(msg)
    names = [str(point) for point in claim.points]
    placed = place_runs(pd.DataFrame([planned_columns(point) for point in points]), paper)
    masks = point_masks(placed, claim.points)
    chosen = [[points[int(i)] for i in placed.index[here]] for here in masks]
    if missing := [name for name, here in zip(names, chosen, strict=True) if not here]:
        msg = (
            f"question must be a claim about points of the grid; got {text!r}, and the grid lacks "
            f"{several(len(missing), 'point')} of the paper's numbers: {'; '.join(missing)}."
        )
        raise ValueError(msg)
    _check_alike([c for point in chosen for c in point], ("batch", "warmup", "lr_rule"))
    named = zip(names, chosen, strict=True)
    return Question(
        text=f"{text}: {claim.text}",
        arms=[Arm(name, {run.config.seed: run for run in point}) for name, point in named],
        metric=claim.metric,
        contrasts=claim.contrasts,
        names=[_name_contrast(row, names) for row in claim.contrasts.weights],
    )


_REFERENCE = r"(?:(?P<base>base_batch)|(?P<key>\S+) (?P<value>\S+))"
_AT = r"(?: at (?P<at>.+?))?"
_WITHIN = r" within (?P<margin>[\d.]+(?:e-?\d+)?)(?P<points> points?)?"
_READERS: Mapping[str, Callable[[str, re.Match[str], Sequence[RunSpec], Metric], Question]] = {
    rf"best (?P<key>\S+){_AT}(?:{_WITHIN})?": _read_best,
    rf"no worse than {_REFERENCE}{_AT}{_WITHIN}": _read_no_worse,
    r"claim (?P<number>\d+) of (?P<paper>\S+)": _read_claim,
}


def _read_margin(text: str, found: re.Match[str], metric: Metric) -> float:
    """The margin in the metric's own unit; a point is 0.01 of a fraction."""
    if found["margin"] is None:
        return 0.0
    if bool(found["points"]) != (metric.unit == "%"):
        rule = f"in points: within {found['margin']} points"
        rule = rule if metric.unit == "%" else f"a number of {metric.name}"
        msg = f"the margin of a question must be {rule}; got question={text!r}."
        raise ValueError(msg)
    return float(found["margin"]) / (100 if found["points"] else 1)


def _select_points(at: str | None, points: Sequence[RunSpec]) -> Sequence[RunSpec]:
    """The points that have the values named after `at`."""
    parts = (at or "").split()
    if len(parts) % 2:
        msg = f"question must give a value for each key after 'at'; got {at!r}. {_FORMS}"
        raise ValueError(msg)
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        _check_key(key, points)
        left = [point for point in points if _is_same_value(point.words[key][0], value)]
        if not left:
            known = ", ".join(dict.fromkeys(point.words[key][0] for point in points))
            msg = (
                f"question must ask about values in the grid; got {key}={value}, the grid has "
                f"{key}={known}."
            )
            raise ValueError(msg)
        points = left
    return points


def _make_arms(key: str, points: Sequence[RunSpec]) -> list[Arm]:
    """An arm for each value of a key; nothing else may differ between them."""
    _check_key(key, points)
    _check_alike(points, (key,))
    by_value: dict[str, list[RunSpec]] = {}
    for point in points:
        by_value.setdefault(point.words[key][0], []).append(point)
    named = {f"{key}={value}": there for value, there in by_value.items()}
    return [Arm(name, {p.config.seed: p for p in there}) for name, there in named.items()]


def _check_key(key: str, points: Sequence[RunSpec]) -> None:
    known = points[0].words
    if key not in known or key == "seed":
        hint = did_you_mean(key, [name for name in known if name != "seed"])
        msg = f"question must ask about keys of the runs; got {key}. {hint or _FORMS}"
        raise ValueError(msg)


def _check_alike(points: Sequence[RunSpec], keys: Sequence[str]) -> None:
    free, words = ("seed", *keys), [point.words for point in points]
    for name in dict.fromkeys(name for point in words for name in point):
        if any(name == key or name.startswith(f"{key}.") for key in free):
            continue
        values = list(dict.fromkeys(point.get(name, ("none",))[0] for point in words))
        if len(values) > 1:
            msg = (
                f"the points that a question compares must differ in {', '.join(keys)} only; here "
                f"{name} differs too: {', '.join(values)}. Give it one value, or add to the "
                f"question: at {name} {values[0]}."
            )
            raise ValueError(msg)


def _check_arms(arms: Sequence[Arm]) -> None:
    """Refuse arms with other or too few seeds, and two arms that are the same training."""
    seeds = [list(arm.runs) for arm in arms]
    if len(seeds[0]) < LEAST_SEEDS or any(sorted(others) != sorted(seeds[0]) for others in seeds):
        numbers = ", ".join(sorted({f"{len(others)}" for others in seeds}))
        msg = (
            f"seed must have {LEAST_SEEDS} or more values, the same for all points compared: as "
            f"many as may be spent on the question; got {numbers}. Write 'seed=range(0,20)'."
        )
        raise ValueError(msg)
    owners: dict[str, str] = {}
    for arm in arms:
        for run in arm.runs.values():
            other = owners.setdefault(run.lr_equivalence_id or run.run_id, arm.name)
            if other != arm.name:
                msg = (
                    f"the points that a question compares must train differently; {other} and "
                    f"{arm.name} have the same learning rate at each step. Leave one out."
                )
                raise ValueError(msg)


def _name_contrast(weights: Array, names: Sequence[str]) -> str:
    used = [(weight, name) for weight, name in zip(weights, names, strict=True) if weight]
    if sorted(weight for weight, _ in used) == [-1, 1]:
        above, below = (next(n for w, n in used if w == sign) for sign in (1, -1))
        return f"{above} minus {below}"
    return " ".join(f"{weight:+.2g} x {name}" for weight, name in used)


def _is_same_value(text: str, other: str) -> bool:
    """Whether two texts mean the same value."""
    try:
        return float(text) == float(other)
    except ValueError:
        return text == other
