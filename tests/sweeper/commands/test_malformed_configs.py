"""Every key of conf/ with every kind of wrong value: planned, or refused in a sentence."""

import io
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import malformed
import pyarrow as pa
import pytest
from rich.console import Console

from sweeper.commands import user_facts
from sweeper.commands.refusals import fit_line
from sweeper.commands.show_plan import plan_lines, show
from sweeper.commands.user_facts import add_facts
from sweeper.planning.plan import plan
from sweeper.spec.run_memory import CPU
from sweeper.spec.sentences import printable
from sweeper.store.ledger import Ledger
from sweeper.store.run_columns import planned_row
from sweeper.store.schema import RUNS, arrow_schema

Config = dict[str, Any]

_FAST = 1000
#: Of some 18,000 cases; the rest is for who changes what is checked.
_ALL = int(os.environ.get("SWEEPER_MALFORMED_CONFIGS", "4000"))
_AT_MOST_S = 20
_SCHEMA = arrow_schema(RUNS)
_RULE = re.compile(r"\b(must|needs?|cannot)\b")
_NOT_MADE = "module._target_ and data._target_ must be made; got none, as this process makes none."


class TooSlowError(Exception):
    """A case that comes to no end."""


@pytest.fixture(scope="module")
def bases(grid: Callable[..., list[Config]]) -> list[Config]:
    return [config for words in malformed.BASES for config in grid(*words)]


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder in which a module of `_target_`s tells that it was imported or called."""

    def make_none(_: Sequence[Config]) -> NoReturn:
        raise ValueError(_NOT_MADE)

    def too_slow(*_: Any) -> NoReturn:
        raise TooSlowError

    monkeypatch.setattr(user_facts, "_ask_for_facts", make_none)
    monkeypatch.setenv("CANARY", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, too_slow)
    yield tmp_path
    signal.signal(signal.SIGALRM, before)


def planned(config: Config) -> None:
    """All that `sweeper plan` does with a point; the row must be one that tables can hold."""
    ledger = Ledger.from_setting(config["results"])
    found = plan(add_facts([config], ledger.results), ledger, device=CPU)
    rows = [{**dict.fromkeys(RUNS), **planned_row(spec)} for spec in found.specs]
    pa.Table.from_pylist(rows, schema=_SCHEMA)
    lines = plan_lines(found, {})
    json.dumps(lines, allow_nan=False)
    show(found, lines, Console(file=io.StringIO(), width=200))


def refusal(config: Config) -> str:
    """Why a config is refused, as it is printed; empty if it is planned."""
    signal.alarm(_AT_MOST_S)
    try:
        planned(config)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        return "\n".join(map(fit_line, str(error).splitlines()))
    finally:
        signal.alarm(0)
    return ""


def spelled(value: Any) -> Iterator[str]:
    """How a refusal may spell a value; the beginning of it."""
    if value is None or isinstance(value, bool):
        yield {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, int | float) and abs(value) < 1e300:
        yield f"{value:g}"
    yield from (printable(str(value))[:30], printable(repr(value))[:30])


def names_the_mistake(text: str, path: Sequence[str], value: Any) -> bool:
    """Whether a refusal has a rule, the key, and the value or a part of it."""
    inside = isinstance(value, list | Mapping)  # then what is wrong may be in there
    key = path[-2] if path[-1] == "name" and len(path) > 1 else path[-1]
    named = key in text and (inside or any(word in text for word in spelled(value)))
    return named and bool(_RULE.search(text)) and ("got " in text or "must be given" in text)


def check(cases: Sequence[malformed.Case], bases: Sequence[Config]) -> None:
    found: list[str] = []
    for index, path, value in cases:
        case = f"{' '.join(malformed.BASES[index])} | {'.'.join(path)}={value!r}"[:200]
        try:
            text = refusal(malformed.changed(bases[index], path, value))
        except Exception as error:  # noqa: BLE001  what a user would see as a traceback
            found.append(f"{case}: {error!r}"[:500])
            continue
        if text and text != _NOT_MADE and not names_the_mistake(text, path, value):
            found.append(f"{case}: {text[:300]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("words", malformed.BASES[:-1], ids=" ".join)
def test_what_is_changed_here_is_right_before(grid, words):
    (config,) = grid(*words)

    assert refusal(config) == ""


def test_every_wrong_value_is_planned_or_refused_with_rule_key_and_value(bases, canary):
    rule = (("lr_rule", "_target_"), "canary.sings")  # one's own, which every plan calls
    cases = [case for case in malformed.cases(bases)[:_FAST] if case[1:] != rule]

    check(cases, bases)
    assert sorted(path.name for path in canary.iterdir()) in ([], ["imported"])


def test_what_is_found_late_is_refused_as_well(bases):
    """By a rule of several keys, or once all rates are computed."""
    late = [(("metric",), "a\nb"), (("base_lr",), 1e308), (("schedule", "factor"), 1e308)]

    check([(0, path, value) for path, value in late], bases)


@pytest.mark.slow
def test_thousands_of_wrong_values(bases):
    cases = malformed.cases(bases)[_FAST:_ALL]

    check(cases, bases)


def test_several_mistakes_at_once_are_refused(bases):
    """Rules that look at several keys meet values that each rule of one key lets pass."""
    draw, cases = random.Random(0), malformed.cases(bases)
    found = []
    for number in range(200):
        index = draw.randrange(len(bases))
        chosen = draw.sample([case for case in cases[:3000] if case[0] in (0, index)], 3)
        config = bases[index]
        try:
            for _, path, value in sorted(chosen, key=lambda case: len(case[1]), reverse=True):
                config = malformed.changed(config, path, value)
            refusal(config)
        except Exception as error:  # noqa: BLE001  what a user would see as a traceback
            found.append(f"{number}: {[(path, repr(v)[:50]) for _, path, v in chosen]}: {error!r}")

    assert found == []
