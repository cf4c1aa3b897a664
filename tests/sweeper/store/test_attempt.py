"""A launcher killed between two steps of an attempt's end leaves nothing behind for good."""

import itertools
import json
import math
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store import attempt as attempt_module
from sweeper.store import lease, publish
from sweeper.store.attempt import Attempt, End, Open, attempt_state
from sweeper.store.compaction import compact
from sweeper.store.lease import LEASE, this_process
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json
from sweeper.store.recovery import finish_abandoned, recover_attempt
from sweeper.store.run_columns import planned_columns
from sweeper.store.table_files import read_whole, write_table


@pytest.fixture
def attempt(ledger, config):
    """An attempt whose checkpoint is there and whose holder, another process, is dead."""
    begun = Attempt.begin(run_spec(config()), ledger, 1)
    publish_json(begun.folder / LEASE, asdict(this_process()) | {"born": "1"})
    zipfile.ZipFile(begun.checkpoint, "w").close()  # as torch writes it
    (begun.folder / "rendezvous").touch()
    return begun


def left_over(ledger):
    return ledger.active() or [p for p in ledger.results.rglob("*") if p.name == "rendezvous"]


def test_killed_before_the_row_it_gets_one_and_keeps_its_checkpoint(ledger, attempt):
    finish_abandoned(ledger)

    assert ledger.ended()[attempt.spec.run_id].outcome == Outcome.PREEMPTED
    assert attempt.checkpoint.exists()
    assert not left_over(ledger)


def test_killed_after_a_result_was_recorded_the_result_is_the_row(ledger, attempt):
    record = {"outcome": "diverged", "reason": "the loss became non-finite"}
    (attempt.folder / "record-0.json").write_text(json.dumps(record))

    finish_abandoned(ledger)

    assert ledger.ended()[attempt.spec.run_id].outcome == Outcome.DIVERGED
    assert not attempt.checkpoint.exists()
    assert not left_over(ledger)


def test_killed_after_the_row_the_row_stays_as_it_is(ledger, attempt):
    end = End(outcome=Outcome.TIMED_OUT, reason="ran past timeout_s=5")
    ledger.publish(attempt.row(end, ledger.results), [])

    finish_abandoned(ledger)

    assert ledger.ended()[attempt.spec.run_id].outcome == Outcome.TIMED_OUT
    assert attempt_state(ledger, attempt.spec.run_id, 1) == end
    assert not (ledger.results / "superseded").exists()
    assert not left_over(ledger)


def test_killed_after_the_release_the_mark_is_taken_away(ledger, attempt):
    publish_json(attempt.folder / "released.json", {"outcome": "finished", "reason": "trained"})

    finish_abandoned(ledger)

    assert not left_over(ledger)


def test_a_running_attempt_is_left_alone_and_not_begun_again(ledger, config):
    begun = Attempt.begin(run_spec(config()), ledger, 1)

    finish_abandoned(ledger)

    assert attempt_state(ledger, begun.spec.run_id, 1) is Open.HELD
    assert Attempt.begin(begun.spec, ledger, 1) is None
    assert ledger.active() == [(begun.spec.run_id, 1)]


def test_a_holder_that_was_presumed_dead_changes_nothing_any_more(ledger, attempt):
    """It wakes up after a later attempt was begun, and ends its own."""
    later = Attempt.begin(attempt.spec, ledger, 2)

    attempt.end(End(outcome=Outcome.FINISHED, reason="trained"), ledger)

    assert attempt.spec.run_id not in ledger.ended()
    assert (ledger.results / "superseded/runs").is_dir()
    assert later.checkpoint.exists()
    assert attempt_state(ledger, attempt.spec.run_id, 2) is Open.HELD


@pytest.mark.parametrize("results", [None, "", " ", 1, True])
def test_results_that_are_no_path_are_refused(results):
    with pytest.raises(
        ValueError, match=r"^results must be (a string|the path of a folder); got results="
    ):
        Ledger.from_setting(results)


def test_tags_are_a_column_and_no_part_of_the_run(config):
    plain, tagged = run_spec(config()), run_spec(config(tags="pilot, on 2 GPUs"))

    assert planned_columns(tagged) == planned_columns(plain) | {"tags": "pilot, on 2 GPUs"}


def test_after_a_clock_was_set_back_a_run_is_given_time_to_save(attempt):
    """Its files are of the future; what it has not saved may be hours."""
    ahead = time.time() + 3600
    os.utime(attempt.checkpoint, (ahead, ahead))

    assert attempt.unsaved_s() == math.inf


@pytest.mark.parametrize("text", ["[" * 99_999, "[]", '{"outcome": [], "reason": 1}'])
def test_an_end_of_another_form_is_none(ledger, attempt, text):
    (attempt.folder / "released.json").write_text(text)
    (attempt.folder / "record-0.json").write_text(text)

    assert isinstance(attempt_state(ledger, attempt.spec.run_id, 1), Open)
    assert attempt.record().get("outcome") in (None, [])


@pytest.mark.parametrize(("number", "where"), [(1, "after epoch 0"), (2, "before it had resumed")])
def test_an_attempt_that_is_stopped_while_it_loads_has_lost_no_epoch(ledger, config, number, where):
    attempt = Attempt.begin(run_spec(config()), ledger, number)

    assert attempt.end_of_stopped(lambda: "stopped").reason == f"stopped {where}"


def test_a_mark_that_became_a_folder_stops_nothing(ledger, attempt):
    (mark,) = (ledger.results / "active").iterdir()
    mark.unlink()
    mark.mkdir()

    attempt.settle(End(outcome=Outcome.FAILED, reason="no"), ledger)


@pytest.fixture
def sleeper(ledger, config):
    """An attempt of a process that sleeps past its lease, and what it knows, taken from this one.

    Called with what the others do meanwhile; it wakes when that is over.
    """
    begun = Attempt.begin(run_spec(config()), ledger, 1)

    def sleep(others):
        known = set(lease._held)
        publish_json(begun.folder / LEASE, asdict(this_process()) | {"born": "1"})
        lease._held.clear()
        others()
        lease._held.clear()
        lease._held.update(known)

    return begun, sleep


def test_who_wakes_finds_its_claim_gone_and_publishes_nothing(ledger, sleeper):
    begun, sleep = sleeper

    sleep(lambda: recover_attempt(ledger, begun.spec.run_id, 1))

    assert not begun.end(End(outcome=Outcome.FINISHED, reason="trained"), ledger)
    assert ledger.ended()[begun.spec.run_id].outcome == Outcome.PREEMPTED
    assert len(list((ledger.results / "runs").iterdir())) == 1
    stated = attempt_state(ledger, begun.spec.run_id, 1)
    assert stated.reason == "its launcher was gone after epoch 0"


@pytest.mark.parametrize("does_later", [False, True], ids=["recovered", "and trained"])
@pytest.mark.parametrize(
    ("name", "at", "is_ours"),
    [
        *(("flush_to_disk", at, False) for at in range(3)),
        *(("replace", at, False) for at in range(3)),
        ("release", 0, True),
    ],
)
def test_a_run_has_one_row_whenever_its_holder_slept_while_it_ended(
    ledger, sleeper, monkeypatch, name, at, is_ours, does_later
):
    """Just before it writes its curve, its row or its end to the disk, or renames one of them."""
    begun, sleep = sleeper
    places = {"flush_to_disk": publish, "replace": Path, "release": attempt_module}
    real, calls = getattr(places[name], name), itertools.count()

    def others():
        recover_attempt(ledger, begun.spec.run_id, 1)
        later = Attempt.begin(begun.spec, ledger, 2) if does_later else None
        assert not later or later.end(End(outcome=Outcome.DIVERGED, reason="no"), ledger)

    def act(*arguments):
        if next(calls) == at:
            sleep(others)
        return real(*arguments)

    monkeypatch.setattr(places[name], name, act)
    is_published = begun.end(End(outcome=Outcome.FINISHED, reason="trained"), ledger)
    monkeypatch.undo()

    (row,) = (path.name for path in (ledger.results / "runs").iterdir())
    ended = "001-finished" if is_ours or at == 2 else "001-preempted"  # its row was there
    assert is_published == is_ours
    assert row == f"{begun.spec.run_id}-{'002-diverged' if does_later else ended}.parquet"
    assert attempt_state(ledger, begun.spec.run_id, 1).outcome == ended.partition("-")[2]
    assert not list(ledger.results.rglob("*.tmp"))


def test_who_wakes_while_its_attempt_is_being_recovered_adds_no_row(ledger, sleeper, monkeypatch):
    """The recoverer has published its row when the sleeper renames its own, and dies there."""
    begun, sleep = sleeper
    real = Path.replace

    def killed(*_):
        raise KeyboardInterrupt

    def others():
        monkeypatch.setattr(Attempt, "settle", killed)
        with pytest.raises(KeyboardInterrupt):
            recover_attempt(ledger, begun.spec.run_id, 1)
        monkeypatch.undo()

    def act(partial, path):
        if path.parent.name == "runs":
            monkeypatch.undo()
            sleep(others)
        return real(partial, path)

    monkeypatch.setattr(Path, "replace", act)

    assert not begun.end(End(outcome=Outcome.FINISHED, reason="trained"), ledger)
    (row,) = (path.name for path in (ledger.results / "runs").iterdir())
    assert row == f"{begun.spec.run_id}-001-preempted.parquet"


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("mend", [compact, lambda results: finish_abandoned(Ledger(results))])
def test_a_run_with_two_rows_is_left_the_later_one(ledger, config, mend, is_merged):
    spec, other = run_spec(config()), run_spec(config(seed=1))
    for number, outcome in ((1, Outcome.FINISHED), (2, Outcome.DIVERGED)):
        begun = Attempt.begin(spec, ledger, number)
        begun.end(End(outcome=outcome, reason=""), ledger)
    Attempt.begin(other, ledger, 1).end(End(outcome=Outcome.FINISHED, reason=""), ledger)
    late = f"{spec.run_id}-001-finished.parquet"
    for table, name in (("runs", late), ("curves", late.replace("-finished", ""))):
        path = ledger.results / "superseded" / table / name
        path.rename(ledger.results / table / name)
    if is_merged:
        merge_all(ledger.results)

    mend(ledger.results)
    compact(ledger.results)

    rows = pd.read_parquet(ledger.results / "runs").set_index("run_id")
    assert len(rows) == 2
    assert rows.loc[spec.run_id].outcome == "diverged"
    assert len(pd.read_parquet(ledger.results / "curves")) == 0
    assert (ledger.results / "superseded/runs" / late).exists()


def merge_all(results):
    """Merge all rows, as versions did that mended nothing."""
    for table in ("runs", "curves"):
        paths = sorted((results / table).iterdir())
        merged = pa.concat_tables([read_whole(path, table) for path in paths])
        write_table(merged, results / table / "compact-000000000000.parquet")
        for path in paths:
            path.unlink()


def test_of_many_processes_that_find_an_abandoned_attempt_one_recovers_it(ledger, attempt):
    """All have seen that its holder is dead; R1 of the findings: none fails either."""
    folder = attempt.folder
    recover = (
        "import sys; from pathlib import Path; from sweeper.store.recovery import recover_attempt;"
        "from sweeper.store.ledger import Ledger; print('ready', flush=True); sys.stdin.readline();"
        "end = recover_attempt(Ledger(Path(sys.argv[1])), sys.argv[2], 1);"
        "print(end and end.outcome, flush=True)"
    )
    command = [sys.executable, "-c", recover, str(ledger.results), attempt.spec.run_id]
    pipe = subprocess.PIPE
    contenders = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for one in contenders:
        assert one.stdout.readline() == "ready\n"
    said = [one.communicate("go\n", timeout=900)[0].strip() for one in contenders]

    assert {one.returncode for one in contenders} == {0}
    assert "preempted" in said
    assert len(list((ledger.results / "runs").iterdir())) == 1
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["taken-001"]
