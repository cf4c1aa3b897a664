"""A launcher killed between two steps of an attempt's end leaves nothing behind for good."""

import json
import math
import os
import time
import zipfile
from dataclasses import asdict

import pytest

from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End, Open, attempt_state, finish_abandoned
from sweeper.store.lease import LEASE, this_process
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json
from sweeper.store.row import planned_columns


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
