"""What becomes of queued runs that a worker cannot train, or that would all fail."""

import signal

import pandas as pd
import pytest

from sweeper.launch.queue.launcher import run_in_queue
from sweeper.launch.queue.queue import Queue
from sweeper.planning.plan import Task
from sweeper.spec.run_spec import run_spec


def test_what_a_worker_cannot_train_is_left_and_failures_alike_end_all(short, ledger, command):
    ledger.prepare()
    model = {"_target_": "provoked.Raising"}
    broken = [short(seed=seed, model=model, micro_batch_limit=768) for seed in range(5)]
    for number, configs in enumerate(([short(accelerator="gpu", devices=60)], broken)):
        tasks = [Task(spec=run_spec(config), number=1) for config in configs]
        assert list(run_in_queue(tasks, ledger, detach=True))[-1].is_detached, number

    ended = command("work", f"results={ledger.results}", "--jobs", "1")

    assert ended.returncode == 1
    rows = pd.read_parquet(ledger.results / "runs").sort_values("started_at")
    assert list(rows.outcome) == ["failed"] * 3 + ["preempted"] * 2
    assert list(rows.seed) == [0, 1, 2, 3, 4]  # in the order of the queue
    assert rows.reason.iloc[-1].startswith("No further runs are started")
    assert "Left to other workers: " in ended.stdout
    assert len(Queue(ledger).list_runs()) == 1


def test_a_worker_of_a_folder_without_a_queue_says_so_and_makes_none(command, tmp_path):
    ended = command("work", f"results={tmp_path}")

    assert ended.returncode == 0
    assert "No run is queued in " in ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.fixture(autouse=True)
def _signals():
    """A worker in this process sets handlers of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
