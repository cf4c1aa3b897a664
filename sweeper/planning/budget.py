"""A sweep's budget in device-hours: which grids it refuses, and which runs no longer start."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.planning.plan import Event, Plan, Task, is_settled
from sweeper.spec.config import RunConfig
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger

_ROUNDING = 1e-9


def unsettled_runs(
    planned: Plan, *, retry: str | None, rerun: str | None, code: str | None = None
) -> list[RunSpec]:
    """The runs that `tasks` would start, judging by the rows alone; changes nothing."""
    again = {*planned.changes} if code == "rerun" else set[str]()
    settled = {
        run_id
        for run_id, row in planned.ended.items()
        if run_id not in planned.early and is_settled(row.outcome, retry)
    }
    return [s for s in planned.specs if rerun or s.run_id in again or s.run_id not in settled]


def spent_hours(specs: Sequence[RunSpec], ledger: Ledger) -> float:
    """Time spent by all attempts at these runs so far [device-hours]."""
    attempts = (
        ledger.attempt_folder(spec.run_id, number)
        for spec in specs
        for number in range(1, ledger.last_attempt(spec.run_id) + 1)
    )
    return sum(map(_attempt_hours, attempts))


def _attempt_hours(folder: Path) -> float:
    """Device-hours of an attempt, up to its last file except the note of its end, which may lag."""
    try:
        config = json.loads((folder / "config.json").read_text())
        began = (folder / "config.json").stat().st_mtime
        times = [path.stat().st_mtime for path in folder.iterdir() if path.name != "released.json"]
        return (max(times) - began) * config["devices"] * config["num_nodes"] / 3600
    except (OSError, ValueError, KeyError):  # never started, or damaged
        return 0.0


def left_hours(spec: RunSpec, ledger: Ledger, *, from_scratch: bool = False) -> float | None:
    """Predicted remaining time of a run; None if its time is not known [device-hours]."""
    if spec.facts.predicted is None:
        return None
    hours = spec.facts.predicted.s * spec.split.world_size / 3600
    last = 0 if from_scratch else ledger.last_attempt(spec.run_id)
    attempt = Attempt.load(ledger, spec.run_id, last) if last else None
    if attempt is None or not attempt.checkpoint.exists():
        return hours
    return hours * max(0.0, 1 - attempt.steps() / spec.total_steps)


def check_budget(
    config: RunConfig, hours: Mapping[str, float | None], runs: Sequence[RunSpec], *, spent: float
) -> None:
    """Refuse a grid that the budget does not cover.

    Args:
        config: of the command.
        hours: predicted remaining time by run id [device-hours].
        runs: the runs still to do.
        spent: time spent by attempts so far [device-hours].

    Raises:
        ValueError: if a run's time is unknown, or with the largest part that the budget covers.
    """
    allowed = config.budget
    if allowed is None:
        return
    known = {run_id: left for run_id, left in hours.items() if left is not None}
    if unknown := len(hours) - len(known):
        msg = (
            f"budget={config.budget} needs the time of each run; it is not known for {unknown} of "
            f"{several(len(hours), 'run')}, as no run of the same kind has finished on this device "
            f"in {config.results}. `sweeper plan --probe` with the same overrides measures it."
        )
        raise ValueError(msg)
    total = sum(known.values())
    if spent + total <= allowed * (1 + _ROUNDING):
        return
    part = _largest_part(runs, known, allowed - spent)
    msg = (
        f"budget must cover the grid; got budget={config.budget} device-hours, with "
        f"{spent:.3g} spent by earlier attempts and {total:.3g} to come for "
        f"{several(len(runs), 'run')}. "
        f"{f'The largest part that fits: {part}.' if part else 'No part of it fits.'}"
    )
    raise ValueError(msg)


def _largest_part(runs: Sequence[RunSpec], hours: Mapping[str, float], left: float) -> str:
    """Overrides that fit: as many seeds as possible, else one seed with some values of one key."""
    words = {spec.run_id: {k: text for k, (text, _) in spec.words.items()} for spec in runs}
    by_seed = _costs(words, hours, "seed")
    seeds = list(by_seed)
    for number in range(len(seeds) - 1, 0, -1):
        if sum(by_seed[seed] for seed in seeds[:number]) <= left:
            return _override("seed", seeds[:number])
    first = {run_id: texts for run_id, texts in words.items() if texts["seed"] == seeds[0]}
    best, most = "", 0
    for key in dict.fromkeys(key for texts in first.values() for key in texts):
        kept, cost = set[str](), 0.0
        costs = _costs(first, hours, key)
        for value in sorted(costs, key=lambda value: costs[value]):
            if (cost := cost + costs[value]) <= left:
                kept.add(value)
        runs_kept = sum(texts.get(key, "") in kept for texts in first.values())
        if len(costs) > 1 and runs_kept > most:
            best, most = _override(key, [value for value in costs if value in kept]), runs_kept
    return f"{_override('seed', seeds[:1])} {best}" if best else ""


def _costs(
    words: Mapping[str, Mapping[str, str]], hours: Mapping[str, float], key: str
) -> dict[str, float]:
    """Cost of the runs at each value of a key [device-hours]."""
    costs: dict[str, float] = defaultdict(float)
    for run_id, texts in words.items():
        costs[texts.get(key, "")] += hours[run_id]
    return costs


def _override(key: str, values: Sequence[str]) -> str:
    return f"{key}={','.join(values)}"


@dataclass(slots=True)
class _Started:
    hours: float
    ranks: int
    at: float | None = None

    @property
    def cost(self) -> float:
        """The predicted time, or the time since it began if that is longer [device-hours]."""
        if self.at is None:
            return self.hours
        return max(self.hours, (time.monotonic() - self.at) * self.ranks / 3600)


@dataclass(slots=True)
class Account:
    """What a running sweep spends; runs that would exceed the budget are left out.

    Attributes:
        left: the part of the budget that this sweep may spend [device-hours].
        hours: predicted remaining time by run id [device-hours].
        left_out: tasks that were not started.
    """

    left: float
    hours: Mapping[str, float | None]
    left_out: list[Task] = field(default_factory=list[Task])
    _ended_hours: float = 0.0
    _started: dict[str, _Started] = field(default_factory=dict[str, _Started])

    @property
    def spent(self) -> float:
        """Spent by ended runs, plus the expected total of those started [device-hours]."""
        return self._ended_hours + sum(run.cost for run in self._started.values())

    def fits(self, task: Task) -> bool:
        """Whether a task may start; if so its time is reserved, otherwise it is left out."""
        hours, spec = self.hours.get(task.spec.run_id) or 0.0, task.spec
        if self.spent + hours > self.left * (1 + _ROUNDING):
            self.left_out.append(task)
            return False
        self._started[spec.run_id] = _Started(hours, spec.split.world_size)
        return True

    def handle(self, event: Event) -> None:
        """Account for the attempts that began and ended."""
        for attempt in event.began:
            spec = attempt.spec
            again = _Started(self.hours.get(spec.run_id) or 0.0, spec.split.world_size)
            self._started.setdefault(spec.run_id, again).at = time.monotonic()
        for run_id in event.ended:
            run = self._started.pop(run_id, None)
            if run and run.at is not None:
                self._ended_hours += (time.monotonic() - run.at) * run.ranks / 3600

    def describe_left_out(self, budget: object) -> str | None:
        """A sentence on the runs that were left out; None if none were."""
        if not self.left_out:
            return None
        are = "is" if len(self.left_out) == 1 else "are"
        return (
            f"{several(len(self.left_out), 'run')} {are} left out, first "
            f"{self.left_out[0].spec.point}, as budget={budget} would be exceeded: this sweep has "
            f"used {self.spent:.3g} of {max(0.0, self.left):.3g} device-hours."
        )
