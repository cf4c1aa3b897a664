"""What waits in SLURM's queue is understood by a later version of the code, or refused in words."""

import json
import os
from dataclasses import asdict, replace

import pytest

from sweeper.commands import status
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.commands import Queued
from sweeper.launch.slurm.submissions import Layout, list_waiting_runs
from sweeper.planning.plan import Task
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import LEASE, this_process


@pytest.fixture
def layout(ledger, default_config):
    """One run that was submitted as job 17."""
    ledger.prepare()
    made = Layout(ledger, "1x1")
    made.queue.add([Task(spec=run_spec(default_config), number=1)], "0123")
    made.open_submission("0123")
    made.record_job("0123", "17")
    return made


def listed(**changes) -> Queued:
    known = {"job": "17", "index": 0, "state": "PD", "reason": "BeginTime", "comment": ""}
    return Queued(**known | changes)


def test_a_ticket_of_another_version_is_refused_in_words(layout, default_config):
    ticket = layout.queue.find(run_spec(default_config).run_id)
    earlier = {key: value for key, value in default_config.items() if key != "optimizer"}

    with pytest.raises(ValueError, match=r"was submitted by another version \(optimizer"):
        _ = replace(ticket, config=earlier).spec
    with pytest.raises(ValueError, match="run 0123456789ab was submitted by another version"):
        _ = replace(ticket, run_id="0123456789ab").spec


def test_jobs_are_known_by_their_number_or_by_their_comment(layout):
    layout.open_submission("4567")  # by a process that is about to record the number

    assert layout.is_being_submitted
    assert layout.alive([listed(), listed(job="18")]) == [listed()]
    by_comment = listed(job="18", comment="sweeper 4567")
    assert layout.alive([by_comment]) == [by_comment]
    layout.record_job("4567", "18")
    assert not layout.is_being_submitted


def test_the_status_command_shows_the_others_beside_a_ticket_that_cannot_be_read(
    layout, default_config, ledger, capsys, monkeypatch
):
    monkeypatch.setenv("PATH", "/nonexistent")  # no squeue
    layout.queue.add([Task(spec=run_spec(default_config | {"seed": 1}), number=1)], "0123")
    path = min(ledger.results.glob("slurm/1x1/queued/*/*.json"))
    path.write_text("cut o")

    assert status.main(["--results", str(ledger.results)]) == 0

    said = capsys.readouterr().out
    assert f"1 outdated: {path} must be a ticket of this version of sweeper; it cannot be" in said
    assert "Remove it and repeat the command to submit its run again." in said
    assert "1 submitted: squeue does not respond here" in said


@pytest.mark.parametrize("was_cut_off", [False, True])
@pytest.mark.usefixtures("layout")
def test_a_run_whose_job_was_put_back_into_the_queue_is_shown_once_as_queued(
    default_config, ledger, capsys, monkeypatch, was_cut_off
):
    """After a preemption, which has its row, and after the loss of a node, which has none."""
    attempt = Attempt.begin(run_spec(default_config), ledger, 1)
    if was_cut_off:
        (attempt.folder / LEASE).write_text(json.dumps(asdict(replace(this_process(), born="0"))))
    else:
        attempt.end(End(outcome=Outcome.PREEMPTED, reason="SLURM took its nodes away"), ledger)
    monkeypatch.setattr(commands, "query_queue", lambda users: [listed()])

    found = status.overview(ledger)
    assert status.main(["--results", str(ledger.results)]) == 0

    assert (found["counts"], found["running"], found["without_result"]) == ({}, [], [])
    assert [line["state"] for line in found["waiting"]] == ["queued"]
    said = capsys.readouterr().out
    assert said.count("seed=0") == 1
    assert "1 queued: BeginTime" in said
    assert "no run has finished yet, 0 running." in said
    monkeypatch.setattr(commands, "query_queue", lambda users: [])
    found = status.overview(ledger)
    assert [line["state"] for line in found["running"]] == ["abandoned"] * was_cut_off
    assert found["counts"] == ({} if was_cut_off else {"preempted": 1})
    assert found["waiting"] == []


@pytest.mark.usefixtures("layout")
def test_a_run_that_was_stopped_is_one_row_until_the_sweep_is_repeated(
    default_config, ledger, capsys, monkeypatch
):
    """`sweeper stop` leaves its ticket and no job; a pruned trial is not resumed."""
    monkeypatch.setattr(commands, "query_queue", lambda users: [])
    for seed in range(2):
        attempt = Attempt.begin(run_spec(default_config | {"seed": seed}), ledger, 1)
        if seed:
            attempt.request_cancel("pruned")
        attempt.end(End(outcome=Outcome.PREEMPTED, reason="stopped after epoch 3"), ledger)

    assert status.main(["--results", str(ledger.results)]) == 0

    said = capsys.readouterr().out
    assert said.count(run_spec(default_config).run_id) == 2  # in the table, and with its reason
    assert "gone" not in said
    assert "Repeat the sweep to resume 1 preempted run." in said


@pytest.mark.parametrize("outcome", ["finished", "failed", "preempted"])
@pytest.mark.usefixtures("layout")
def test_a_run_that_ended_elsewhere_does_not_wait_for_the_job_that_left(
    default_config, ledger, monkeypatch, outcome
):
    """A command on this machine had it when its job started."""
    attempt = Attempt.begin(run_spec(default_config), ledger, 1)
    attempt.end(End(outcome=Outcome(outcome), reason=""), ledger)
    monkeypatch.setattr(commands, "query_queue", lambda users: [])

    assert list_waiting_runs(ledger) == []


def test_a_run_that_never_began_has_no_log_to_be_looked_at(default_config, ledger, capsys):
    """Its job was cancelled while it waited."""
    attempt = Attempt.begin(run_spec(default_config), ledger, 1)
    attempt.end(End(outcome=Outcome.PREEMPTED, reason="its job left the queue"), ledger)

    assert status.main(["--results", str(ledger.results)]) == 0

    said = capsys.readouterr().out
    assert "its job left the queue" in said
    assert "log:" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_jobs_of_another_user_of_the_folder_are_asked_for_too(layout, ledger, monkeypatch):
    os.chown(layout.folder, 65534, -1)
    asked = []
    monkeypatch.setattr(commands, "run_program", lambda *words: asked.extend(words) or "")

    (line,) = list_waiting_runs(ledger)

    assert "--user=0,65534" in asked
    assert line["state"] == "gone"
    assert line["why"].endswith(f"(output in {ledger.results}/slurm/1x1); repeat the sweep")
