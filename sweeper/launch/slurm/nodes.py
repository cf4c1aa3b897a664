"""Runs on the nodes of the job that this process is in: srun starts the ranks, one process each."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from sweeper.launch.local.memory_probe import Fitting, fitted
from sweeper.launch.local.oom_retry import Halving
from sweeper.launch.slurm.commands import without_tasks
from sweeper.launch.slurm.rank import END_RANKS
from sweeper.planning.tasks import End, Event, Task
from sweeper.spec.memory import Device
from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import Attempt, end_of_record
from sweeper.store.lease import HEARTBEAT_S
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Probes

_TICK_S = 0.1
_GRACE_S = 5.0
_BY_SIGNAL = 128
_FROM_OUTSIDE = {9: "SIGKILL", 15: "SIGTERM"}


def run_on_nodes(
    tasks: Sequence[Task],
    ledger: Ledger,
    device: Device,
    *,
    why_stopped: Callable[[], str],
    may_start: Callable[[], bool],
) -> Generator[Event]:
    """Make runs one after the other, each on all nodes of this job.

    Args:
        tasks: what to run, in this order.
        ledger: where the rows go.
        device: what the ranks train on; micro-batches are tried on this node's.
        why_stopped: the reason of a run that is stopped, or asked to leave, before its end.
        may_start: whether runs that wait may begin.

    Yields:
        An event per tick, empty when nothing happened.
    """
    context = multiprocessing.get_context("forkserver")
    fitting = Fitting(Probes(ledger.results, device), context)
    halving, waiting = Halving(), deque(tasks)
    while waiting and may_start():
        task = waiting.popleft()
        fit = yield from fitted(task, fitting)
        attempt = Attempt.begin(fit.spec, ledger, task.number, from_scratch=task.from_scratch)
        if attempt is None:
            continue
        yield Event(began=[attempt])
        if fit.refusal:
            yield _published(attempt, (Outcome.OUT_OF_MEMORY, fit.refusal), ledger)
        elif refusal := _refusal(attempt):
            yield _published(attempt, (Outcome.FAILED, refusal), ledger)
        elif end := (yield from _watched(_started(attempt), ledger, why_stopped)):
            outcome, reason = end[0], end[1] + halving.note(attempt.spec.run_id)
            event = _published(attempt, (outcome, reason), ledger)
            fitting.learn(attempt, outcome)
            if outcome == Outcome.OUT_OF_MEMORY and (smaller := halving.again(attempt)):
                waiting.appendleft(smaller)
            else:
                yield event


@dataclass(slots=True, kw_only=True)
class _Step:
    attempt: Attempt
    process: subprocess.Popen[bytes]
    deadline: float | None
    looked_at: float


def _refusal(attempt: Attempt) -> str:
    """Why the ranks cannot be started, before they are; empty if they can."""
    asked = attempt.spec.config["num_nodes"]
    given = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    if asked <= given:
        return ""
    return (
        f"num_nodes must be the nodes that the job has; got num_nodes={asked}, SLURM gave {given}. "
        "Take nodes and ntasks out of hydra.launcher.parameters: they follow from num_nodes."
    )


def _started(attempt: Attempt) -> _Step:
    config = attempt.spec.config
    command = [
        "srun",
        f"--nodes={config['num_nodes']}",
        f"--ntasks={attempt.spec.split.world_size}",
        f"--ntasks-per-node={config['devices']}",
        f"--cpus-per-task={os.environ.get('SLURM_CPUS_PER_TASK', config['threads'])}",
        "--distribution=block",
        "--kill-on-bad-exit=1",
        *(sys.executable, "-m", "sweeper.launch.slurm.rank"),
        *(str(attempt.folder), str(attempt.checkpoint)),
    ]
    with (attempt.folder / "srun.txt").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=without_tasks(os.environ),
        )
    timeout_s, now = config["timeout_s"], time.monotonic()
    deadline = now + timeout_s if timeout_s else None
    return _Step(attempt=attempt, process=process, deadline=deadline, looked_at=now)


def _watched(
    step: _Step, ledger: Ledger, why_stopped: Callable[[], str]
) -> Generator[Event, None, tuple[Outcome, str] | None]:
    """Wait for the ranks; how the run ended, or None if another process took it over."""
    try:
        while (end := _end_of(step, why_stopped)) is None:
            time.sleep(_TICK_S)
            if _is_taken_over(step):
                _stop(step)
                return None  # its row is not ours to write
            yield Event()
    except GeneratorExit:
        _stop(step)
        step.attempt.end(*step.attempt.end_when_stopped(why_stopped), ledger)
        raise
    return end


def _is_taken_over(step: _Step) -> bool:
    """Whether it is another's now; looked up as often as hearts beat."""
    if time.monotonic() - step.looked_at < HEARTBEAT_S:
        return False
    step.looked_at = time.monotonic()
    return step.attempt.is_taken_over


def _end_of(step: _Step, why_left: Callable[[], str]) -> tuple[Outcome, str] | None:
    code, attempt = step.process.poll(), step.attempt
    if code is None:
        if due := _due(step):
            _stop(step)
        return due
    first = attempt.first_record(range(attempt.spec.split.world_size) if code else (0,))
    if first:
        rank, record = first
        outcome, reason = end_of_record(record, why_left)
        is_failure = code and outcome != Outcome.PREEMPTED
        return outcome, f"{reason} (rank {rank})" if is_failure else reason
    return _without_record(code, attempt)


def _due(step: _Step) -> tuple[Outcome, str] | None:
    """Why ranks that still run are to be ended, if they are."""
    if (reason := step.attempt.stop_reason()) is not None:
        return Outcome.PREEMPTED, reason
    if step.deadline is not None and time.monotonic() > step.deadline:
        timeout_s = step.attempt.spec.config["timeout_s"]
        return Outcome.TIMED_OUT, f"ran past timeout_s={timeout_s:g}"
    return None


def _without_record(code: int, attempt: Attempt) -> tuple[Outcome, str]:
    said = (attempt.folder / "srun.txt").read_text(errors="replace").strip().splitlines()
    if any("oom" in line.lower().replace("-", "") for line in said):
        return Outcome.OUT_OF_MEMORY, "SLURM ended a rank that ran out of the job's memory"
    if name := _FROM_OUTSIDE.get(code - _BY_SIGNAL):
        return Outcome.PREEMPTED, f"a rank was ended by {name} from outside"
    last = f": {said[-1]}" if said else ""
    return Outcome.FAILED, f"srun exited with {code}{last}"


def _stop(step: _Step) -> None:
    """End the ranks: through srun, and by a file where SLURM is ending the job already."""
    (step.attempt.folder / END_RANKS).touch()
    step.process.terminate()
    try:
        step.process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        step.process.kill()
        step.process.wait()


def _published(attempt: Attempt, end: tuple[Outcome, str], ledger: Ledger) -> Event:
    outcome, reason = end
    attempt.end(outcome, reason, ledger)
    return Event(ended=[End(run_id=attempt.spec.run_id, outcome=outcome, reason=reason)])
