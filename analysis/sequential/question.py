"""The questions that a sequential sweep answers, as people type them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analysis.sequential.looks import Looks
from analysis.sequential.rule import Best, NoWorse, Rule
from analysis.tables.metric import Metric
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import did_you_mean, is_same_value

_FORMS = (
    'Write "best KEY at KEY VALUE ... within M points", or "no worse than base_batch at KEY VALUE '
    '... within M points" (or another KEY VALUE in place of base_batch).'
)
#: Student's t intervals need this many to be useful.
LEAST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class QuestionArm:
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
        margin: the largest difference that does not matter, in the metric's unit.
        reference: the place of the arm that the others should be no worse than; None to find the
            best arm.
    """

    text: str
    arms: Sequence[QuestionArm]
    metric: Metric
    margin: float = 0.0
    reference: int | None = None

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the grid."""
        return list(self.arms[0].runs)

    def rule(self, looks: Looks) -> Rule:
        """The rule that answers it, before any look."""
        if self.reference is None:
            return Best(len(self.arms), looks, self.margin)
        return NoWorse(len(self.arms), looks, self.margin, self.reference)


def parse_question(text: str, points: Sequence[RunSpec], metric: Metric) -> Question:
    """Read a question about the points of a grid.

    Raises:
        ValueError: if it cannot be parsed, names what the grid lacks, or compares points that
            differ in more than it asks about.
    """
    words = " ".join(text.replace("=", " ").split())
    for pattern, read in _READERS.items():
        if found := re.fullmatch(pattern, words):
            arms, reference = read(text, found, points)
            margin = _read_margin(text, found, metric)
            _check_arms(arms)
            return Question(text=text, arms=arms, metric=metric, margin=margin, reference=reference)
    msg = f"question must have one of the known forms; got question={text!r}. {_FORMS}"
    raise ValueError(msg)


#: Arms that are compared, and the place of the reference among them, if there is one.
Read = tuple[list[QuestionArm], int | None]


def _read_best(text: str, found: re.Match[str], points: Sequence[RunSpec]) -> Read:
    key = found["key"]
    arms = _make_arms(key, _select_points(found["at"], points))
    if len(arms) < 2:
        msg = (
            f"question must leave two or more values of {key} to compare; got question={text!r}, "
            f"with one in the grid: {arms[0].name}. Give {key} more values."
        )
        raise ValueError(msg)
    return arms, None


def _read_no_worse(text: str, found: re.Match[str], points: Sequence[RunSpec]) -> Read:
    points = _select_points(found["at"], points)
    key, value = found["key"], found["value"]
    if found["base"]:
        key, value = "batch", points[0].words["base_batch"][0]
    arms = _make_arms(key, points)
    same = [i for i, arm in enumerate(arms) if is_same_value(arm.name.partition("=")[2], value)]
    if not same or len(arms) < 2:
        shown = ", ".join(arm.name for arm in arms)
        msg = (
            f"question needs {key}={value} and another value of {key} in the grid; got "
            f"question={text!r}, the grid has {shown}. Add the missing value."
        )
        raise ValueError(msg)
    return arms, same[0]


_REFERENCE = r"(?:(?P<base>base_batch)|(?P<key>\S+) (?P<value>\S+))"
_AT = r"(?: at (?P<at>.+?))?"
_WITHIN = r" within (?P<margin>[\d.]+(?:e-?\d+)?)(?P<points> points?)?"
_READERS: Mapping[str, Callable[[str, re.Match[str], Sequence[RunSpec]], Read]] = {
    rf"best (?P<key>\S+){_AT}(?:{_WITHIN})?": _read_best,
    rf"no worse than {_REFERENCE}{_AT}{_WITHIN}": _read_no_worse,
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
        left = [point for point in points if is_same_value(point.words[key][0], value)]
        if not left:
            known = ", ".join(dict.fromkeys(point.words[key][0] for point in points))
            msg = (
                f"question must ask about values in the grid; got {key}={value}, the grid has "
                f"{key}={known}."
            )
            raise ValueError(msg)
        points = left
    return points


def _make_arms(key: str, points: Sequence[RunSpec]) -> list[QuestionArm]:
    """An arm for each value of a key; nothing else may differ between them."""
    _check_key(key, points)
    _check_alike(points, key)
    by_value: dict[str, list[RunSpec]] = {}
    for point in points:
        by_value.setdefault(point.words[key][0], []).append(point)
    named = {f"{key}={value}": there for value, there in by_value.items()}
    return [QuestionArm(name, {p.config.seed: p for p in there}) for name, there in named.items()]


def _check_key(key: str, points: Sequence[RunSpec]) -> None:
    known = points[0].words
    if key not in known or key == "seed":
        hint = did_you_mean(key, [name for name in known if name != "seed"])
        msg = f"question must ask about keys of the runs; got {key}. {hint or _FORMS}"
        raise ValueError(msg)


def _check_alike(points: Sequence[RunSpec], key: str) -> None:
    words = [point.words for point in points]
    for name in dict.fromkeys(name for point in words for name in point):
        if name in {"seed", key} or name.startswith(f"{key}."):
            continue
        values = list(dict.fromkeys(point.get(name, ("none",))[0] for point in words))
        if len(values) > 1:
            msg = (
                f"the points that a question compares must differ in {key} only; here {name} "
                f"differs too: {', '.join(values)}. Give it one value, or add to the "
                f"question: at {name} {values[0]}."
            )
            raise ValueError(msg)


def _check_arms(arms: Sequence[QuestionArm]) -> None:
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
