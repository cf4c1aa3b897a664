"""A sweep's budget in device-hours: which grids it refuses, and which runs no longer start."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from sweeper.planning.plan import Event, Plan, Task
from sweeper.planning.seconds import Speeds
from sweeper.spec.config import RunConfig
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt, Open, attempt_state
from sweeper.store.ledger import Ledger
from sweeper.store.publish import read_mapping

_ROUNDING = 1e-9


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
        config = read_mapping(folder / "config.json")
        began = (folder / "config.json").stat().st_mtime
        times = [path.stat().st_mtime for path in folder.iterdir() if path.name != "released.json"]
        return (max(times) - began) * config["devices"] * config["num_nodes"] / 3600
    except (OSError, TypeError, ValueError, KeyError, OverflowError):  # never started, or damaged
        return 0.0


def left_hours(specs: Sequence[RunSpec], ledger: Ledger, device: Device) -> dict[str, float | None]:
    """Predicted remaining time by run id; None if a run's time is not known [device-hours]."""
    speeds, found = Speeds(ledger, device), dict[str, float | None]()
    for spec in specs:
        if (seconds := speeds.predict(spec)) is None:
            found[spec.run_id] = None
            continue
        last, left = ledger.last_attempt(spec.run_id), 1.0
        if attempt := Attempt.load(ledger, spec.run_id, last) if last else None:
            is_held = attempt_state(ledger, spec.run_id, last) is Open.HELD
            if is_held or (attempt.checkpoint.exists() and not spec.config.rerun):
                trained = attempt.steps() / spec.total_steps
                left = min(1.0, max(0.0, 1 - trained) / spec.share_to_train)
        found[spec.run_id] = left * seconds.total * spec.split.world_size / 3600
    return found


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
        ValueError: if a run's time is unknown, or with the number of seeds that the budget covers.
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
    total, by_seed = sum(known.values()), defaultdict[int, float](float)
    if spent + total <= allowed * (1 + _ROUNDING):
        return
    for spec in runs:
        by_seed[spec.config.seed] += known[spec.run_id]
    costs = zip(by_seed, accumulate(by_seed.values()), strict=True)
    fitting = ",".join(f"{seed}" for seed, cost in costs if cost <= allowed - spent)
    first = next(iter(by_seed))
    none_fits = f"seed={first} alone needs {by_seed[first]:.3g}: allow more, or give fewer values."
    msg = (
        f"budget must cover the grid; got budget={config.budget} device-hours, with "
        f"{spent:.3g} spent by earlier attempts and {total:.3g} to come for "
        f"{several(len(runs), 'run')}. "
        f"{f'The largest part that fits: seed={fitting}.' if fitting else none_fits}"
    )
    raise ValueError(msg)


@dataclass(slots=True)
class Account:
    """What a running sweep spends; runs that would exceed the budget are left out."""

    left: float  # the part of the budget that this sweep may spend [device-hours]
    hours: Mapping[str, float | None]  # predicted remaining time by run id [device-hours]
    left_out: list[Task] = field(default_factory=list[Task])  # tasks that were not started
    _ended_hours: float = 0.0
    _ranks: dict[str, int] = field(default_factory=dict[str, int])  # of started runs
    _began_at: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def spent(self) -> float:
        """Spent by ended runs, plus the expected total of those started [device-hours]."""
        started = (
            max(self.hours.get(run_id) or 0.0, self._hours_since_begin(run_id))
            for run_id in self._ranks
        )
        return self._ended_hours + sum(started)

    def fits(self, task: Task) -> bool:
        """Whether a task may start; if so its time is reserved, otherwise it is left out."""
        spec = task.spec
        if self.spent + (self.hours.get(spec.run_id) or 0.0) > self.left * (1 + _ROUNDING):
            self.left_out.append(task)
            return False
        self._ranks[spec.run_id] = spec.split.world_size
        return True

    def handle(self, event: Event) -> None:
        """Account for the attempts that began and ended."""
        for attempt in (*event.began, *event.elsewhere):
            self._ranks[attempt.spec.run_id] = attempt.spec.split.world_size
            self._began_at[attempt.spec.run_id] = time.monotonic()
        for run_id in event.ended:
            self._ended_hours += self._hours_since_begin(run_id)
            self._ranks.pop(run_id, None)
            self._began_at.pop(run_id, None)

    def _hours_since_begin(self, run_id: str) -> float:
        if run_id not in self._began_at:
            return 0.0
        return (time.monotonic() - self._began_at[run_id]) * self._ranks[run_id] / 3600

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


def open_account(planned: Plan, ledger: Ledger, device: Device) -> Account | None:
    """The account of what a sweep may spend, which covers all its runs; None without a budget.

    ValueError if the budget does not cover them, or their time is not known.
    """
    config = planned.specs[0].config
    if config.budget is None:
        return None
    runs = planned.to_do(retry=config.retry, rerun=config.rerun, code=config.code)
    hours, spent = left_hours(runs, ledger, device), spent_hours(planned.specs, ledger)
    check_budget(config, hours, runs, spent=spent)
    return Account(left=config.budget - spent, hours=hours)
