"""Queued runs, and workers in this process whose runs take no time."""

import pytest
from stub_worker import StubRanks, forget_torch, work

from sweeper.launch import ranks as rank_processes
from sweeper.launch.local import launcher
from sweeper.launch.queue.queue import Queue
from sweeper.planning.plan import Task
from sweeper.spec.run_spec import run_spec
from sweeper.store import publish


@pytest.fixture
def stubs(monkeypatch):
    """No torch in this process's workers."""
    monkeypatch.setattr(launcher, "open_fork_server", launcher.open_fork_server)
    monkeypatch.setattr(rank_processes, "_TICK_S", rank_processes._TICK_S)
    monkeypatch.setattr(publish, "flush_to_disk", lambda path: None)
    forget_torch()


@pytest.fixture
def queued(short, ledger):
    """Queue so many runs; the queue."""

    def add(count, first=0):
        ledger.prepare()
        queue = Queue(ledger)
        seeds = range(first, first + count)
        compared = {"metric": "val_loss", "metric_mode": "min"}
        specs = [run_spec(short(seed=seed, micro_batch=7680, **compared)) for seed in seeds]
        queue.add([Task(spec=spec, number=1) for spec in specs], "0123")
        return queue

    return add


@pytest.fixture
def train(ledger, stubs):
    """Be a worker; its exit code and what it said."""
    del stubs

    def run(make=None, signals=None):
        said = []
        ranks = StubRanks(make=make) if make else StubRanks()
        return work(ledger.results, signals, said.append, ranks), "\n".join(said)

    return run
