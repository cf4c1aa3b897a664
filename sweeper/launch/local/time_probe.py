"""Time probes: a run of each kind is trained for some seconds, timed, and discarded.

The machine is kept full, since runs that share a machine slow each other down.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import Event, Task
from sweeper.planning.seconds import Timing, row_timing, store_timings, time_kind
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger
from sweeper.store.step_progress import read_step_progress

_LEAST_S, _MOST_S = 6.0, 60.0
_EPOCHS = 2  # with the evaluation between them
_READ = (
    "accumulation_steps", "steps_per_epoch", "steps", "train_s", "start_s", "wall_s",
    "device_kind",
)  # fmt: skip


def probe_times(specs: Sequence[RunSpec], results: Path, machine: Machine) -> list[str]:
    """Time each kind of these runs and store the timings; a sentence for each that failed.

    ValueError if they cannot run on this machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder))
        ledger.prepare()
        probes = _Probes(ledger)
        tasks = [Task(spec=spec, number=1) for spec in _choose_probes(specs, machine)]
        for event in run_here(tasks, ledger, machine):
            probes.handle(event)
    for (kind, device), timings in probes.timings.items():
        store_timings(kind, device, timings, results)
    return probes.failures


def _choose_probes(specs: Sequence[RunSpec], machine: Machine) -> list[RunSpec]:
    """For each kind, runs with the fewest and most accumulation steps; repeated to fill slots.

    Each has a seed of its own, so that repeats differ, its micro-batch, and no logger.
    """
    kinds: dict[str, dict[int, RunSpec]] = defaultdict(dict)
    for spec in specs:
        kind = time_kind(spec.config.resolved, spec.split.micro_batch)
        kinds[kind].setdefault(spec.split.accumulation_steps, spec)
    chosen = [kind[steps] for kind in kinds.values() for steps in sorted({min(kind), max(kind)})]
    threads = max(spec.split.world_size * spec.config.threads for spec in chosen)
    places = len(machine.gpus) or max(1, machine.cores // threads)
    num = min(-(-len(chosen) // places) * places, max(len(specs), len(chosen)))
    changes = {"logger": {"_target_": None}, "branch": None, "trunk": None}
    return [
        run_spec(spec.config.with_changes(seed=turn, micro_batch=spec.split.micro_batch, **changes))
        for turn, spec in enumerate(islice(cycle(chosen), num))
    ]


class _Probes:
    """The running probes, and the timings of those that have ended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.timings: dict[tuple[str, str], list[Timing]] = defaultdict(list)
        self.failures: list[str] = []
        self._running: dict[str, Attempt] = {}
        self._began_at: dict[str, float] = {}

    def handle(self, event: Event) -> None:
        """Process an event, and stop the probes that have trained for long enough."""
        self._running |= {attempt.spec.run_id: attempt for attempt in event.began}
        for run_id, end in event.ended.items():
            if (attempt := self._running.pop(run_id, None)) is None:
                continue  # Ctrl-C came while it began
            row, timing = self._ledger.rows({run_id}, _READ)[run_id], None
            if end.outcome == Outcome.FINISHED:
                timing = row_timing(row)
            elif end.outcome == Outcome.PREEMPTED:
                timing = _timing_so_far(attempt, row["start_s"])
            spec = attempt.spec
            if timing:
                kind = time_kind(spec.config.resolved, spec.split.micro_batch)
                self.timings[kind, row["device_kind"]].append(timing)
            else:
                self.failures.append(f"{spec.point} could not be timed: {end.reason}")
        for run_id, attempt in self._running.items():
            if progress := read_step_progress(attempt.folder):
                trained_s = time.monotonic() - self._began_at.setdefault(run_id, time.monotonic())
                if trained_s > (_LEAST_S if progress.epochs_done > _EPOCHS else _MOST_S):
                    attempt.request_graceful_stop()


def _timing_so_far(attempt: Attempt, start_s: float) -> Timing | None:
    """The timing of a stopped probe, by the speed that it had reached; None if it had none."""
    now = read_step_progress(attempt.folder)
    if not now or not now.examples_per_s:
        return None
    plan, epoch = attempt.spec.batch_plan, now.epoch - 1
    epochs = attempt.spec.most_epochs
    left = plan.examples_before(epochs) - plan.examples_before(epoch, now.step)
    between_s = ((now.left_s or 0.0) - left / now.examples_per_s) / (epochs - epoch)
    return Timing(
        accumulation_steps=attempt.spec.split.accumulation_steps,
        step_s=attempt.spec.split.global_batch / now.examples_per_s,
        start_s=start_s,
        between_s=max(0.0, between_s),
    )
