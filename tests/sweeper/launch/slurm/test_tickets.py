"""What waits in SLURM's queue is understood by a later version of the code, or refused in words."""

import json
import os
from dataclasses import asdict, replace

import pytest

from sweeper.commands import status
from sweeper.launch.queue.queue import Ticket
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.commands import Queued
from sweeper.launch.tickets import Jobs, Tickets, list_waiting_runs
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import LEASE, this_process
from sweeper.store.ledger import Ledger


def ticket(config, /, **changes) -> Ticket:
    known = {"run_id": run_spec(config).run_id, "config": config, "number": 1}
    rest = {"from_scratch": False, "submission": "0123", "index": 0}
    return Ticket(**{**known, **rest, **changes})


def test_a_ticket_of_another_version_is_refused_in_words(default_config):
    earlier = {key: value for key, value in default_config.items() if key != "optimizer"}

    with pytest.raises(ValueError, match=r"was submitted by another version \(optimizer"):
        _ = ticket(default_config, config=earlier).spec
    with pytest.raises(ValueError, match="run 0123456789ab was submitted by another version"):
        _ = ticket(default_config, run_id="0123456789ab").spec


def test_a_ticket_for_any_job_has_one_as_long_as_one_of_the_array_is_in_the_queue(
    default_config, results
):
    results.mkdir()
    tickets = Tickets(Ledger(results))
    tickets.open_submission("0123")
    tickets.record_job("0123", "17")
    of_any, of_second = ticket(default_config, index=None), ticket(default_config, index=1)
    queued = {"state": "R", "reason": "", "comment": "sweeper 0123"}
    running = Jobs([Queued(job="17", index=0, **queued)], tickets)

    assert running.has(of_any)
    assert not running.has(of_second)
    assert not Jobs([], tickets).has(of_any)


def test_what_is_no_ticket_is_left_alone_and_a_cut_ticket_refused(default_config, results):
    tickets = Tickets(Ledger(results))
    made = ticket(default_config)
    tickets.claim(made, instead_of=None)
    for name in ("notes", "abc-x.json", "abc-.json"):
        (results / "slurm/queued" / name).touch()

    assert tickets.latest_numbers() == {made.run_id: 1}
    path = results / f"slurm/queued/{made.run_id}-001.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match=r"must be a ticket of this version of sweeper; .* Remove"):
        tickets.find(made.run_id)


def test_the_status_command_shows_the_others_beside_a_ticket_that_cannot_be_read(
    default_config, results, capsys, monkeypatch
):
    monkeypatch.setenv("PATH", "/nonexistent")  # no squeue
    tickets = Tickets(Ledger(results))
    tickets.claim(ticket(default_config), instead_of=None)
    tickets.claim(ticket(default_config | {"seed": 1}), instead_of=None)
    path = min((results / "slurm/queued").iterdir())
    path.write_text("cut o")

    assert status.main([str(results)]) == 0

    said = capsys.readouterr().out
    assert f"1 outdated: {path} must be a ticket of this version of sweeper; it cannot be" in said
    assert "Remove it and repeat the command to submit its run again." in said
    assert "1 submitted: squeue does not respond here" in said


@pytest.mark.parametrize("was_cut_off", [False, True])
def test_a_run_whose_job_was_put_back_into_the_queue_is_shown_once_as_queued(
    default_config, ledger, capsys, monkeypatch, was_cut_off
):
    """After a preemption, which has its row, and after the loss of a node, which has none."""
    tickets = Tickets(ledger)
    tickets.claim(ticket(default_config), instead_of=None)
    tickets.open_submission("0123")
    tickets.record_job("0123", "17")
    attempt = Attempt.begin(run_spec(default_config), ledger, 1)
    if was_cut_off:
        (attempt.folder / LEASE).write_text(json.dumps(asdict(replace(this_process(), born="0"))))
    else:
        attempt.end(End(outcome=Outcome.PREEMPTED, reason="SLURM took its nodes away"), ledger)
    job = Queued(job="17", index=0, state="PD", reason="BeginTime", comment="sweeper 0123")
    monkeypatch.setattr(commands, "query_queue", lambda users: [job])

    found = status.overview(ledger)
    assert status.main([str(ledger.results)]) == 0

    assert (found["counts"], found["running"], found["without_result"]) == ({}, [], [])
    assert [line["state"] for line in found["waiting"]] == ["queued"]
    said = capsys.readouterr().out
    assert said.count("seed=0") == 1
    assert "1 queued: BeginTime" in said
    assert "no run has finished yet, 0 running." in said
    monkeypatch.setattr(commands, "query_queue", lambda users: [])
    found = status.overview(ledger)
    assert [line["state"] for line in found["running"]] == ["abandoned"] * was_cut_off
    assert found["counts"] == {} if was_cut_off else {"preempted": 1}


@pytest.mark.parametrize(
    ("outcome", "is_shown"), [("finished", False), ("failed", False), ("preempted", True)]
)
def test_a_run_that_ended_elsewhere_does_not_wait_for_the_job_that_left(
    default_config, ledger, monkeypatch, outcome, is_shown
):
    """A command on this machine had it when its job started."""
    Tickets(ledger).claim(ticket(default_config), instead_of=None)
    attempt = Attempt.begin(run_spec(default_config), ledger, 1)
    attempt.end(End(outcome=Outcome(outcome), reason=""), ledger)
    monkeypatch.setattr(commands, "query_queue", lambda users: [])

    assert [line["state"] for line in list_waiting_runs(ledger, Tickets(ledger))] == [
        "gone"
    ] * is_shown


def test_a_run_that_never_began_has_no_log_to_be_looked_at(default_config, ledger, capsys):
    """Its job was cancelled while it waited."""
    attempt = Attempt.begin(run_spec(default_config), ledger, 1)
    attempt.end(End(outcome=Outcome.PREEMPTED, reason="its job left the queue"), ledger)

    assert status.main([str(ledger.results)]) == 0

    said = capsys.readouterr().out
    assert "its job left the queue" in said
    assert "log:" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_jobs_of_another_user_of_the_folder_are_asked_for_too(default_config, ledger, monkeypatch):
    tickets = Tickets(ledger)
    tickets.claim(ticket(default_config), instead_of=None)
    (path,) = (ledger.results / "slurm/queued").iterdir()
    os.chown(path, 65534, -1)
    asked = []
    monkeypatch.setattr(commands, "run_program", lambda *words: asked.extend(words) or "")

    (line,) = list_waiting_runs(ledger, Tickets(ledger))

    assert "--user=0,65534" in asked
    assert line["state"] == "gone"
    assert line["why"].endswith(f"(output in {ledger.results}/slurm/0123); repeat the sweep")
