"""What a worker makes of runs that are killed, foreign tickets, and folders that are lost."""

import errno
import json
import os
import shutil
import signal

import pandas as pd
import pytest
from stub_worker import Stub

from sweeper.launch.queue import queue_worker
from sweeper.launch.queue.launcher import run_in_queue
from sweeper.launch.queue.queue import Queue
from sweeper.launch.queue.queue_worker import FirstSignal
from sweeper.planning.plan import Task
from sweeper.spec.run_spec import run_spec
from sweeper.store import attempt as attempt_module
from sweeper.store.compaction import compact
from sweeper.store.recovery import finish_abandoned


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(queue_worker, "_TRY_AGAIN_S", 0.0)
    monkeypatch.setattr(queue_worker, "_LOOK_EVERY_S", 0.0)


def rows(ledger):
    return pd.read_parquet(ledger.results / "runs").sort_values("seed", ignore_index=True)


class Killed(Stub):
    """A rank that something outside kills in its first attempts, before or after an epoch."""

    attempts, after = 2, 0

    def _train(self):
        is_killed = self._attempt.number <= self.attempts
        return -signal.SIGKILL if is_killed and len(self._rows) >= self.after else super()._train()


class KilledLater(Killed):
    """Each attempt gets an epoch further."""

    def _train(self):
        self.after = self._attempt.number
        return super()._train()


class AlwaysKilled(Killed):
    attempts = 99


@pytest.mark.parametrize(("make", "attempts"), [(Killed, 3), (KilledLater, 3)])
def test_a_run_whose_rank_was_killed_stays_queued_and_is_trained(
    ledger, queued, train, make, attempts
):
    queue = queued(2)

    code, said = train(make)

    assert code == 0
    assert list(rows(ledger).outcome) == ["finished"] * 2
    assert set(rows(ledger).attempt) == {attempts}
    assert "the worker was killed by SIGKILL from outside" in said
    assert "seed=0  val_loss=0.3333  trained 3 epochs" in said
    assert not queue.list_runs()


def test_a_run_that_is_killed_again_and_again_ends_with_a_row_that_says_so(ledger, queued, train):
    """The curve that it had stays; the same command tries it again."""
    queue = queued(1)

    class KilledAfterAnEpoch(AlwaysKilled):
        after = 1

    code, _ = train(KilledAfterAnEpoch)

    (row,) = rows(ledger).itertuples()
    assert code == 0
    assert row.outcome == "preempted"
    assert row.reason == (
        "not tried again, as 3 attempts in a row ended before they saved a step. The last: the "
        "worker was killed by SIGKILL from outside. Repeat the command to try again"
    )
    assert (row.attempt, row.epochs_completed) == (5, 1)
    assert not queue.list_runs()
    task = Task(spec=run_spec(json.loads(row.config_json)), number=6)
    assert list(run_in_queue([task], ledger, detach=True))[-1].is_detached
    assert train()[0] == 0
    assert rows(ledger).outcome[0] == "finished"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_text("cut o"), id="damaged"),
        pytest.param(lambda path: path.write_text(""), id="empty"),
        pytest.param(
            lambda path: path.write_text(path.read_text().replace('"seed"', '"soil"')), id="newer"
        ),
        pytest.param(lambda path: (path.unlink(), path.symlink_to("x")), id="a link to nothing"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="a folder"),
    ],
)
def test_a_ticket_that_cannot_be_trained_is_left_to_others(ledger, queued, train, damage):
    queue = queued(5)
    path = sorted(queue.folder.glob("queued/*/*.json"))[2]
    damage(path)

    code, said = train()

    assert code == 1
    assert len(rows(ledger)) == 4
    assert said.count("Left to other workers: ") == 1
    assert queue.list_runs() == {path.stem}


def test_nothing_needs_hard_links(ledger, queued, train, monkeypatch):
    """As on exFAT, and on many mounts of FUSE and SMB."""

    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    queued(2)

    assert train()[0] == 0
    assert len(rows(ledger)) == 2


def lose_folder(ledger):
    """The folder is away, and comes back."""
    aside = ledger.results.with_name("aside")
    ledger.results.rename(aside)
    return lambda: aside.rename(ledger.results)


@pytest.mark.parametrize("place", ["begin", "train", "end", "released"])
@pytest.mark.parametrize("why", ["full", "away"])
def test_a_folder_that_is_full_or_away_is_waited_for(
    ledger, queued, train, monkeypatch, why, place
):
    """At whatever it is doing then; nothing is lost, and its own runs are not taken for others'."""
    queue = queued(3)
    looks = {"before": 1, "after": 3}
    comes_back = []
    real = {"wait": queue_worker.Worker._wait}

    def fail():
        if why == "full":
            raise OSError(errno.ENOSPC, "No space left on device", str(ledger.results / "x"))
        if not comes_back:
            comes_back.append(lose_folder(ledger))
        raise FileNotFoundError(errno.ENOENT, "No such file", str(ledger.results / "x"))

    def is_lost():
        looks["before"] -= 1
        return looks["before"] < 0 and looks["after"] > 0

    def wait(worker, seconds):
        looks["after"] -= 1
        if comes_back and looks["after"] <= 0:
            comes_back.pop()()
        real["wait"](worker, seconds)

    def failing(function):
        def act(*arguments, **named):
            if is_lost():
                fail()
            return function(*arguments, **named)

        return act

    names = {
        "begin": (attempt_module, "claim"),
        "train": (Stub, "_train"),
        "end": (attempt_module.Attempt, "row"),
        "released": (attempt_module, "release"),
    }
    holder, name = names[place]
    monkeypatch.setattr(holder, name, failing(getattr(holder, name)))
    monkeypatch.setattr(queue_worker.Worker, "_wait", wait)

    code, said = train()

    assert code == 0
    assert list(rows(ledger).outcome) == ["finished"] * 3
    assert not queue.list_runs()
    assert f"Waiting for {ledger.results}, as it cannot be used: " in said
    looks["after"] = 0
    finish_abandoned(ledger)  # a mark may be left
    assert not list((ledger.results / "active").iterdir())


def test_a_worker_that_waits_for_its_folder_ends_when_it_is_asked_to(
    ledger, queued, train, monkeypatch
):
    queue = queued(1)
    signals = FirstSignal()

    def wait(worker, seconds):
        del worker, seconds
        signals.record(signal.SIGTERM, None)

    monkeypatch.setattr(queue_worker.Worker, "_wait", wait)
    shutil.move(ledger.results, ledger.results.with_name("aside"))

    code, said = train(signals=signals)

    assert code == 75
    assert said.count("Waiting for ") == 1
    shutil.move(ledger.results.with_name("aside"), ledger.results)
    assert queue.list_runs()


def test_a_worker_merges_rows_at_every_so_many_runs(ledger, queued, train, monkeypatch):
    monkeypatch.setattr(queue_worker, "MERGE_EVERY", 4)
    queued(40)

    assert train()[0] == 0

    runs = ledger.results / "runs"
    assert 0 < len(list(runs.glob("compact-*"))) < 40
    assert len(list(runs.iterdir())) < 40
    assert len(rows(ledger)) == 40
    compact(ledger.results)
    assert len(rows(ledger)) == 40


def test_a_run_waits_for_a_queued_shorter_run_of_its_trunk(ledger, short, train):
    """2 steps in an epoch: the cooldowns begin after 8 and 16 of them."""
    ledger.prepare()
    queue = Queue(ledger)
    lengths = {"schedule": {"name": "wsd", "cooldown": 0.2}, "trunk": [5, 10], "warmup": 0}
    compared = {"metric": "val_loss", "metric_mode": "min", "micro_batch": 7680}
    for epochs in (10, 5):
        spec = run_spec(short(epochs=epochs, **lengths, **compared))
        queue.add([Task(spec=spec, number=1)], "0123")

    code, said = train()

    assert code == 0
    begun = [line for line in said.splitlines() if line.startswith("start")]
    assert [line.split()[-1] for line in begun] == ["epochs=5", "epochs=10"]
    assert not queue.list_runs()
