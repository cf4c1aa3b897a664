"""Ending workers in good order from anywhere, and reading what runs print."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from sweeper.commands import logs, status, stop
from sweeper.launch.queue.queue import Queue
from sweeper.planning.plan import Task
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End

STUB = Path(__file__).parents[2] / "stub_worker.py"


@pytest.fixture
def queued(config, ledger):
    """A queue of so many runs."""

    def add(count):
        ledger.prepare()
        queue = Queue(ledger)
        specs = [run_spec(config(seed=n, batch=3840, micro_batch=3840)) for n in range(count)]
        queue.add([Task(spec=spec, number=1) for spec in specs], "0")
        return queue

    return add


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1 run stays queued; new workers resume it."), (2, "resume them.")]
)
def test_what_stays_queued_is_counted_in_words(queued, ledger, capsys, count, said):
    queued(count)

    assert stop.main(["--results", str(ledger.results)]) == 0

    assert said in capsys.readouterr().out


def wait_until(is_so):
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start(ledger, *words):
    command = [sys.executable, str(STUB), str(ledger.results), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_busy_workers_of_a_folder_end_and_their_runs_stay_queued_and_resume(queued, ledger, capsys):
    queue = queued(4)
    busy = [start(ledger, "--epoch-s", "inf") for _ in range(2)]  # until they are stopped
    wait_until(lambda: len(list(ledger.results.glob("attempts/*/checkpoint.ckpt"))) == 2)

    assert stop.main(["--results", str(ledger.results)]) == 0

    said = [worker.communicate(timeout=60)[0] for worker in busy]
    assert [worker.returncode for worker in busy] == [75, 75]
    assert all("`sweeper stop` was called: stopped after epoch" in text for text in said)
    left = len(queue.list_runs())
    assert left >= 2
    assert f"{left} runs stay queued" in capsys.readouterr().out
    assert status.main(["--results", str(ledger.results)]) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r" queued +1/30 ", said)) == 2
    assert f"waits for a worker, such as `sweeper work results={ledger.results}`" in said
    begun_later = start(ledger)
    assert "  resumes after epoch 1\n" in begun_later.communicate(timeout=300)[0]
    assert begun_later.returncode == 0
    rows = pd.read_parquet(ledger.results / "runs")
    assert list(rows.outcome) == ["finished"] * 4
    assert sorted(rows.attempt)[-2:] == [2, 2]


def test_one_run_is_stopped_for_good_whether_it_has_begun_or_not(queued, ledger, capsys):
    queue = queued(2)
    waits, *_ = runs = sorted(queue.list_runs())
    assert stop.main([waits, "--results", str(ledger.results)]) == 0
    worker = start(ledger, "--epoch-s", "inf")
    wait_until(lambda: list(ledger.results.glob("attempts/*/checkpoint.ckpt")))

    assert stop.main([runs[1][:6], "--results", str(ledger.results)]) == 0

    worker.communicate(timeout=60)
    assert worker.returncode == 0
    rows = pd.read_parquet(ledger.results / "runs")
    assert list(rows.run_id) == [runs[1]]
    assert rows.outcome[0] == "preempted"
    assert rows.reason[0].startswith("`sweeper stop` was called: stopped after epoch")
    assert not queue.list_runs()
    said = capsys.readouterr().out
    assert f"{waits} is not running, and not queued any more." in said
    assert f"{runs[1]} is saved after its current step and ends" in said


@pytest.mark.parametrize(("command", "named"), [(stop, "mistyped"), (logs, "0123")])
def test_a_folder_or_run_that_is_not_there_is_said_to_be(tmp_path, command, named):
    with pytest.raises(ValueError, match=f"needs a results folder or a run id; got {named}"):
        command.main([named, "--results", str(tmp_path)])


def test_a_log_is_printed_and_followed_until_the_attempt_has_ended(ledger, config, capsys):
    ledger.prepare()
    attempt = Attempt.begin(run_spec(config()), ledger, 1)
    where = [attempt.spec.run_id[:5], "--results", str(ledger.results)]
    log = attempt.folder / "log.txt"

    row = {"epoch": 4, "step": 64, "elapsed_s": 2.0, "val_accuracy": 0.5}
    (attempt.folder / "progress.jsonl").write_text(json.dumps(row) + "\n")
    (attempt.folder / "srun.txt").write_text("srun: error")
    assert logs.main(where) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "running  epoch=4/30  val_accuracy=0.5000"
    assert "is empty or missing" in second
    assert second.endswith(f"has printed nothing. See {attempt.folder / 'srun.txt'}.")
    log.write_text("first\n")
    assert logs.main(where) == 0
    assert capsys.readouterr().out == "first\n"
    following = threading.Thread(target=logs.main, args=([*where, "-f"],))
    following.start()
    with log.open("a") as file:
        file.write("second\n")
    attempt.end(End(outcome=Outcome.FINISHED, reason=""), ledger)
    following.join(60)
    assert not following.is_alive()
    assert capsys.readouterr().out == "first\nsecond\n"
