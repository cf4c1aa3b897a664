"""Runs in a queue, which workers take: nothing is lost, done twice, or waited for in vain."""

import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from process_tree import start
from provoked import train_awake
from same_rows import assert_same

from sweeper.launch.queue.queue import Queue
from sweeper.launch.ranks import LocalRanks
from sweeper.store.ledger import Ledger

SLOW = [
    "batch=768", "warmup=0", "schedule=constant", "epochs=12", "data.num_train_examples=3840",
    "model._target_=provoked.Slow", "+model.seconds=0.2",
]  # fmt: skip


def end(process: subprocess.Popen[str], code: int) -> str:
    said, _ = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


def queue(results: Path, *words: str) -> str:
    detached = ["hydra/launcher=queue", "hydra.launcher.detach=true"]
    return end(start("-m", *words, *detached, f"results={results}"), 0)


def wait_for_saved_run(workers: list[subprocess.Popen[str]], results: Path, other_than=None):
    """The first of these workers to have a run that is saved and far from its end; the attempt."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for lease in results.glob("attempts/*/*/lease.json"):
            with suppress(FileNotFoundError, ValueError):  # the run has just ended
                pid = json.loads(lease.read_text())["pid"]
                epochs = (lease.parent / "progress.jsonl").read_text().count("\n")
                if 0 < epochs < 6 and lease.parent.parent != other_than:  # half a run is left
                    for worker in workers:
                        if worker.pid == pid:
                            return worker, lease.parent
        time.sleep(0.05)
    pytest.fail("no run was saved")


@pytest.mark.slow
def test_four_workers_of_which_two_are_ended_train_each_run_once_as_a_process_would(
    results, tmp_path, sweep_here
):
    said = queue(results, *SLOW, "seed=range(6)")
    assert f"`sweeper work results={results}` trains them" in said

    workers = [start("work", f"results={results}", "--jobs", "1") for _ in range(3)]
    killed, lost = wait_for_saved_run(workers, results)
    killed.kill()
    killed.communicate()
    workers.remove(killed)
    # The run that was lost may be taken over and saved again by now: it would be ended twice.
    stopped, saved = wait_for_saved_run(workers, results, other_than=lost.parent)
    stopped.send_signal(signal.SIGTERM)
    workers.remove(stopped)
    workers.append(start("work", f"results={results}"))

    assert "its worker was ended: stopped" in end(stopped, 75)
    for worker in workers:
        end(worker, 0)
    rows = pd.read_parquet(results / "runs")
    attempts = {path.parent.name: path.name for path in sorted(results.glob("attempts/*/[0-9]*"))}
    assert attempts == {
        run_id: "002" if run_id in {lost.parent.name, saved.parent.name} else "001"
        for run_id in rows.run_id
    }
    superseded = pd.read_parquet(results / "superseded/runs").set_index("run_id")
    assert "its launcher was gone after epoch" in superseded.loc[lost.parent.name].reason
    assert Queue(Ledger(results)).list_runs() == set()
    undisturbed = tmp_path / "undisturbed"
    ranks = LocalRanks(train_awake)
    assert sweep_here(undisturbed, *SLOW, "seed=range(6)", ranks=ranks) == 0
    assert_same(rows, pd.read_parquet(undisturbed / "runs"))


@pytest.mark.slow
def test_a_waiting_command_follows_workers_of_which_the_first_works_for_a_time(results):
    sweep = start("-m", *SLOW, "hydra/launcher=queue", f"results={results}")
    deadline = time.monotonic() + 120
    while not list(results.glob("queue/queued/*/*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    brief = end(start("work", f"results={results}", "--for", "1s"), 75)
    status = end(start("status", str(results)), 0)
    end(start("work", f"results={results}"), 0)

    assert "finished" not in brief
    assert "1 queued: waits for a worker" in status
    said = end(sweep, 0)
    assert "Queued 1 run." in said
    assert "elsewhere" in said
    assert said.splitlines()[-1].startswith("1 finished in ")
