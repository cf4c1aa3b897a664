"""Points whose trainings are identical, step by step: one is trained, and its row serves all.

Examples: `lr_rule=none` and `linear` at the base batch, or warmups that start at the peak rate.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sweeper.spec.identity import OF_RATES, id_but_for_rates, with_spans
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.store.ledger import Ledger
from sweeper.store.row_file import RowFile

_POINTS_SHOWN = 10
#: Columns read first, to select the rows that could match.
_MARKING = ("seed", "global_batch", "epochs")
#: Columns from which a run's identity is computed.
_LAID_OUT = ("config_json", "micro_batch", "world_size")
_Mark = tuple[Any, ...]
_Rates = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SamePoint:
    """A point of a grid, and the run that is trained for it."""

    point: RunSpec
    trained: RunSpec


class StoredTrainings:
    """Runs with a result in a results folder, grouped by all that training uses except the rates.

    Nothing that only a stored config names is imported.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._marks: dict[str, _Mark] = {}
        self._parsed: set[str] = set()
        self._rates_of: dict[str, dict[str, _Rates]] = {}
        self._trainings: dict[str, dict[str | None, _Rates]] = {}

    def read(self, results: Set[str], points: Iterable[RunSpec]) -> None:
        """Read the rows of those results that could have these points' training, each once."""
        new = results - self._marks.keys()
        rows = self._ledger.rows(new, _MARKING) if new else {}
        self._marks |= {id: tuple(row[name] for name in _MARKING) for id, row in rows.items()}
        asked = set(map(_mark, points))
        unread = {id for id, mark in self._marks.items() if mark in asked} - self._parsed
        self._parsed |= unread
        rows = self._ledger.rows(unread, _LAID_OUT) if unread else {}
        for run_id, row in rows.items():
            try:
                text, micro_batch, ranks = (row[name] for name in _LAID_OUT)
                config = with_spans(json.loads(text), micro_batch, ranks)
                rates = {key: config.get(key) for key in OF_RATES}
                self._rates_of.setdefault(id_but_for_rates(config), {})[run_id] = rates
            except (ValueError, TypeError, KeyError, AttributeError):  # not one of our configs
                continue

    def like(self, spec: RunSpec) -> RunSpec | None:
        """A stored run with the same training, in this run's layout; None if there is none."""
        if not self._rates_of:
            return None
        rest = spec.kin.id_but_for_rates(spec.config.seed)
        trainings = self._trainings.setdefault(rest, {})
        for run_id, rates in self._new(rest, spec):
            other = _with(rates, spec)
            if other and other.run_id == run_id:
                trainings.setdefault(other.training_id, rates)
        rates = trainings.get(spec.training_id)
        return _with(rates, spec) if rates else None

    def _new(self, rest: str, spec: RunSpec) -> Iterator[tuple[str, _Rates]]:
        """Runs that differ from this one at most in their rates, each once.

        A run whose rates come from a user's function waits for a point that calls it anyway.
        """
        found, asked = self._rates_of.get(rest, {}), spec.config.resolved["lr_rule"]
        for run_id, rates in list(found.items()):
            if "_target_" not in rates["lr_rule"] or rates["lr_rule"] == asked:
                yield run_id, found.pop(run_id)


def _with(rates: _Rates, spec: RunSpec) -> RunSpec | None:
    """This run with other rates; None if they are not possible."""
    try:
        return run_spec(spec.config.replaced(**rates))
    except ValueError:
        return None


def _mark(spec: RunSpec) -> _Mark:
    """The values of `_MARKING` for a run; only runs that share them can be the same training."""
    return spec.config.seed, spec.config.batch, spec.epochs


def same_points(
    specs: Mapping[str, RunSpec],
    ended: Mapping[str, RowFile],
    stored: StoredTrainings,
    running_now: Sequence[RunSpec],
) -> list[SamePoint]:
    """The points that need no training of their own.

    Among points of the same training, one run is trained for all: a run of the grid with a result,
    else one that is running, a stored one with a result, one with a row, or the first of the grid.
    """
    results = {run_id for run_id, row in ended.items() if row.outcome.is_result}
    trainings: dict[str, list[RunSpec]] = {}
    for spec in specs.values():
        if spec.training_id:
            trainings.setdefault(spec.training_id, []).append(spec)
    running = {spec.training_id: spec for spec in running_now}
    found: list[SamePoint] = []
    if asked := [spec for id, spec in specs.items() if id not in results and spec.training_id]:
        stored.read(results, asked)
    for training, points in trainings.items():
        missing = [point for point in points if point.run_id not in results]
        if not missing:
            continue
        done = next((point for point in points if point.run_id in results), None)
        trained = done or running.get(training) or stored.like(missing[0])
        trained = trained or next((p for p in missing if p.run_id in ended), missing[0])
        found += [SamePoint(p, trained) for p in missing if p.run_id != trained.run_id]
    return found


def without_same(specs: Mapping[str, RunSpec], same: Sequence[SamePoint]) -> dict[str, RunSpec]:
    """The runs to train, each at the position of its first point."""
    trained = {pair.point.run_id: pair.trained for pair in same}
    runs = (trained.get(run_id, spec) for run_id, spec in specs.items())
    return {spec.run_id: spec for spec in runs}


def of_same(same: Sequence[SamePoint]) -> Iterator[str]:
    """Lines of text on what happens to such points; nothing if there are none."""
    if not same:
        return
    is_one = len(same) == 1
    yield (
        f"{len(same)} {'point is' if is_one else 'points are'} the same training as another, with "
        "the same learning rate at each step; only that one is trained, and figures show both:"
    )
    for pair in same[:_POINTS_SHOWN]:
        point, trained = pair.point.words, pair.trained.words
        differing = [key for key in (*point, *trained) if point.get(key) != trained.get(key)]
        keys = list(dict.fromkeys(["batch", "warmup", "lr_rule", *differing, "seed"]))
        yield f"    {_said(pair.point, keys)} as {_said(pair.trained, keys)}"
    if (more := len(same) - _POINTS_SHOWN) > 0:
        yield f"    and {more} more"


def _said(spec: RunSpec, keys: Sequence[str]) -> str:
    words = spec.words
    return " ".join(f"{key}={words[key][0]}" for key in keys if key in words)
