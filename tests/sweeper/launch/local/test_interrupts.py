"""Ctrl-C: answered at once, the runs saved meanwhile; pressed again, everything stops."""

import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pandas as pd
import pytest

from sweeper.commands.sweep import handle_events
from sweeper.launch.local import interrupts
from sweeper.launch.local.interrupts import catch_signals
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.launch.ranks import GracefulStop, Running, worker_failure
from sweeper.planning.plan import Event, Task
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger
from sweeper.store.step_progress import read_step_progress


class Rank:
    """A rank that ends when it is killed, or as a test says."""

    sentinel = None

    def __init__(self) -> None:
        self.exitcode: int | None = None

    def kill(self) -> None:
        if self.exitcode is None:
            self.exitcode = -signal.SIGKILL

    def join(self, timeout: float | None = None) -> None: ...


class Ranks:
    """Runs that began an hour ago."""

    def __init__(self, started) -> None:
        self.started = started

    def check(self, spec) -> None: ...

    def start(self, attempt, environment):
        del environment
        make_old(attempt)
        rank = Rank()
        self.started.append((attempt, rank))
        return Running(attempt=attempt, processes=[rank], failure=worker_failure)


def make_old(attempt) -> None:
    """So that there is much to lose, and a graceful stop is waited for."""
    began = time.time() - 3600
    os.utime(attempt.folder / "config.json", (began, began))


@pytest.fixture
def started():
    """The attempts of the runs and their ranks."""
    return []


@pytest.fixture
def running(short, ledger, started):
    """Two runs, as a launcher reports them, after the first report."""
    tasks = [Task(spec=run_spec(short(seed=seed)), number=1) for seed in (0, 1)]
    events = run_here(tasks, ledger, Machine(cores=2, jobs=2), ranks=Ranks(started))
    assert next(events).said == ["Loading torch ..."]
    assert len(next(events).began) == 2
    yield events
    events.close()


def save(attempt, rank) -> None:
    """What a worker does when its run is to be saved."""
    record = '{"outcome": "preempted", "reason": "after 5 of 16 steps of epoch 1"}'
    (attempt.folder / "record-0.json").write_text(record)
    rank.exitcode = 0


def test_the_first_ctrl_c_is_answered_before_anything_is_waited_for(running, started):
    said = running.throw(KeyboardInterrupt()).said

    assert said == [
        "Stopping: saving 2 runs at the next step, which takes at most 10 s. Press Ctrl-C again "
        "to stop at once and lose what was trained since the last checkpoint."
    ]
    assert all(attempt.has_graceful_stop for attempt, _ in started)
    assert not any(rank.exitcode for _, rank in started)


def test_runs_are_reported_as_they_are_saved_and_then_the_sweep_ends(running, started, results):
    running.throw(KeyboardInterrupt())
    save(*started[0])
    first = next(running)
    save(*started[1])
    left = []
    with pytest.raises(KeyboardInterrupt):
        left += iter(running)

    one, other = (attempt.spec.run_id for attempt, _ in started)
    assert first.ended[one].reason == "stopped after 5 of 16 steps of epoch 1"
    assert left[-1].ended[other].reason == "stopped after 5 of 16 steps of epoch 1"
    assert not any(event.said for event in left)
    assert set(pd.read_parquet(results / "runs").outcome) == {"preempted"}
    assert not Ledger(results).active()


def test_the_second_ctrl_c_ends_what_is_not_saved_and_says_so(running, started, results):
    running.throw(KeyboardInterrupt())
    save(*started[0])
    first = next(running).ended
    answer = running.throw(KeyboardInterrupt())
    alive = started[1][1].exitcode is None
    last = next(running)
    with pytest.raises(KeyboardInterrupt):
        next(running)

    assert [rank.exitcode for _, rank in started] == [0, -signal.SIGKILL]
    assert [end.reason for end in (first | last.ended).values()] == [
        "stopped after 5 of 16 steps of epoch 1",
        "stopped after epoch 0",
    ]
    assert answer.said == [
        "1 run not saved in time: what was trained since the last checkpoint is lost."
    ]
    assert alive, "the answer does not wait for the end of processes"
    assert set(pd.read_parquet(results / "runs").outcome) == {"preempted"}


def test_an_end_that_ctrl_c_came_across_is_reported_all_the_same(running, started, monkeypatch):
    """The row is published, and the signal is only then let through."""
    attempt, rank = started[0]
    save(attempt, rank)
    end = type(attempt).end

    def interrupted(self, *arguments):
        signal.raise_signal(signal.SIGINT)
        return end(self, *arguments)

    monkeypatch.setattr(type(attempt), "end", interrupted)
    event = next(running)

    assert "Stopping: saving 1 run" in event.said[0]
    assert list(event.ended) == [attempt.spec.run_id]


def test_ctrl_c_that_comes_while_an_event_is_taken_in_reaches_the_runs(running, started):
    taken = []

    def take(event: Event) -> None:
        taken.append(event)
        for attempt, rank in started if event.said else ():
            save(attempt, rank)
        if len(taken) == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        handle_events(running, take)

    assert "Stopping" in taken[1].said[0]
    assert {id for event in taken for id in event.ended} == {
        attempt.spec.run_id for attempt, _ in started
    }


@pytest.mark.parametrize(
    ("seconds", "where"), [(0.05, r"after \d+ of 16 steps of epoch 1"), (3600, "after epoch 0")]
)
def test_a_stopped_sweep_saves_its_runs_after_the_step_they_are_in(
    config, short, ledger, seconds, where
):
    """Steps of five micro-batches; a run whose step does not end is given up."""
    model = {"_target_": "provoked.Slow", "seconds": seconds}
    slow = short(model=model, micro_batch=768, batch=3840, data=config()["data"])
    runs = run_here([Task(spec=run_spec(slow), number=1)], ledger, Machine(cores=2))
    next(runs)  # torch is being loaded
    (attempt,) = next(runs).began
    log = attempt.folder / "log.txt"
    while not log.exists() or "training" not in log.read_text():
        next(runs)
    if seconds < 1:
        make_old(attempt)

    runs.close()

    (row,) = pd.read_parquet(ledger.results / "runs").itertuples()
    assert row.outcome == "preempted"
    assert re.fullmatch(f"stopped {where}", row.reason)
    assert (row.steps > 0) == (seconds < 1)
    reported = read_step_progress(attempt.folder)
    assert (reported is not None and reported.steps == 16) == (seconds < 1)


def test_a_stopped_sweep_does_not_wait_for_a_run_of_which_a_rank_has_failed(short, ledger):
    """The other ranks wait for it in a collective; the outcome is the failure."""
    attempt = Attempt.begin(run_spec(short(devices=2)), ledger, 1)
    make_old(attempt)
    ranks = [Rank(), Rank()]
    stop = GracefulStop([Running(attempt=attempt, processes=ranks, failure=worker_failure)])
    assert stop.is_waited_for

    ranks[0].exitcode = 1

    assert not stop.is_waited_for


@pytest.mark.parametrize("at", ["store.attempt.record_code", "launch.ranks.LocalRanks.start"])
def test_a_run_interrupted_between_claim_and_start_has_its_row(short, ledger, monkeypatch, at):
    """Ctrl-C while the attempt's folder is being made, or while the fork server is waited for."""
    monkeypatch.setattr(f"sweeper.{at}", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    runs = run_here([Task(spec=run_spec(short()), number=1)], ledger, Machine(cores=2))

    with pytest.raises(KeyboardInterrupt):
        list(runs)

    (row,) = pd.read_parquet(ledger.results / "runs").itertuples()
    assert (row.outcome, row.reason) == ("preempted", "stopped after epoch 0")
    assert not ledger.active()


def test_a_closed_terminal_ends_a_sweep_as_ctrl_c_does_unless_the_signal_is_handled():
    """nohup has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with catch_signals(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)

        noted = []
        for other in (signal.SIG_IGN, lambda number, _: noted.append(number)):
            signal.signal(signal.SIGHUP, other)
            with catch_signals():
                signal.raise_signal(signal.SIGHUP)
        assert noted == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_said_to_a_closed_terminal_is_lost_and_nothing_else(tmp_path):
    noted = tmp_path / "noted"
    script = (
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "from sweeper.launch.local.interrupts import catch_signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "try:\n"
        "    with catch_signals():\n"
        "        os.write(1, b'ready')\n"  # print() would write the end of the line after it
        "        while True:\n"
        "            time.sleep(0.01)\n"  # pause() would miss a signal that comes just before it
        "except KeyboardInterrupt:\n"
        "    print('Stopping', flush=True)\n"
        f"    Path({str(noted)!r}).touch()\n"
    )
    ours, terminal = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", script], stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.read(ours, 100)
    os.close(ours)
    process.send_signal(signal.SIGHUP)

    assert process.wait(60) == 0
    assert noted.exists()


def test_signals_that_come_together_are_one(monkeypatch):
    """`timeout` and torchrun signal a sweep and then its process group."""
    now = [100.0]
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with catch_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        now[0] += 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_the_fork_server_starts_leaves_signals_to_the_launcher(tmp_path, monkeypatch):
    """A terminal, `timeout` and systemd signal every process; the launcher has runs saved first.

    In a process of its own: the fork server of the tests may have been started by any of them.
    The temporary folder is one whose name leaves no room for a socket, as on some clusters; a
    data worker opens another socket, and what users write still goes there.
    """
    script, noted, scratch = tmp_path / "script.py", tmp_path / "noted", tmp_path / ("s" * 99)
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    script.write_text(
        "import signal, sys, tempfile\n"
        "from multiprocessing.connection import Listener\n"
        "from pathlib import Path\n"
        "from sweeper.launch.fork_server import start_process\n"
        "def note_ignored(file):\n"
        "    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)\n"
        "    ignored = [n.name for n in ends if signal.getsignal(n) == signal.SIG_IGN]\n"
        "    Listener(family='AF_UNIX').close()\n"
        "    Path(file).write_text(' '.join([*ignored, tempfile.gettempdir()]))\n"
        "if __name__ == '__main__':\n"
        "    start_process(note_ignored, sys.argv[1]).join()\n"
    )

    subprocess.run([sys.executable, script, noted], check=True)

    assert noted.read_text() == f"SIGINT SIGTERM SIGHUP {scratch}"
