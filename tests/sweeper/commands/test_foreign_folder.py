"""A results folder that somebody else made: nothing that lies in it is imported or called."""

import json
import shutil
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest

import analysis.cli
from sweeper.commands import compact, show_plan, status
from sweeper.commands.overrides import expand
from sweeper.launch.queue.queue import Queue
from sweeper.launch.queue.queue_worker import FirstSignal
from sweeper.launch.slurm.job import Job
from sweeper.spec import identity
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import LEASE, this_process
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json
from sweeper.store.run_columns import planned_columns

SHORT = ["epochs=1", "warmup=0", "schedule=constant", "data.num_train_examples=15360"]
SECRET = "root:x:0:0"

#: Groups of a config that may name code, as a foreign config has them.
NAMED = {
    "lr_rule": {"name": "linear", "_target_": "foreign_code.rule"},
    "schedule": {"name": "cosine", "_target_": "foreign_code.rule"},
    "model": {"_target_": "foreign_code.rule"},
    "data": {"_target_": "foreign_code.rule", "num_train_examples": 15360},
    "optimizer": {"_target_": "foreign_code.rule", "name": "sgd"},
    "logger": {"_target_": "foreign_code.rule"},
}


def running(folder):
    """The id of the run that a folder says is running."""
    ((run_id, _),) = Ledger(folder).active()
    return run_id


COMMANDS = {
    "status": lambda folder: status.main(["--results", str(folder)]),
    "status_run": lambda folder: status.main([running(folder), "--results", str(folder)]),
    "plan": lambda folder: show_plan.main(
        [*SHORT, "batch=3840", f"results={folder}", "--no-memory"]
    ),
    "compact": lambda folder: compact.main([str(folder)]),
    "claims": lambda folder: analysis.cli.main(["claims", str(folder)]),
    "estimates": lambda folder: analysis.cli.main(["estimates", str(folder)]),
    "report": lambda folder: analysis.cli.main(["report", str(folder), "-o", f"{folder}.html"]),
}


@pytest.fixture
def called(tmp_path, monkeypatch):
    """A file that is there once the foreign code was imported."""
    marker = tmp_path / "called"
    code = f"open({str(marker)!r}, 'w').close()\ndef rule(*a, **k): return 1.0\n"
    (tmp_path / "foreign_code.py").write_text(code)
    monkeypatch.delitem(sys.modules, "foreign_code", raising=False)  # of another test
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return marker


@pytest.fixture(scope="module")
def made(tmp_path_factory, default_config, loader):
    """A result of ours, and a running attempt, rows and a ticket of a stranger's."""
    results = tmp_path_factory.mktemp("foreign") / "results"
    ledger = Ledger(results)
    ledger.prepare()
    (ours,) = expand(loader, [*SHORT, "batch=3840"])
    begun = Attempt.begin(run_spec(ours), ledger, 1)
    begun.end(End(outcome=Outcome.FINISHED, reason=""), ledger)
    theirs = {**default_config, **NAMED}
    run_id = identity.run_id(theirs)
    folder = ledger.attempt_folder(run_id, 1)
    folder.mkdir(parents=True)
    publish_json(folder / "config.json", theirs)
    publish_json(folder / LEASE, asdict(this_process()) | {"born": "1"})  # of a dead process
    ledger.mark_active(run_id, 1)
    (results.parent / "secret").write_text(SECRET)
    row = planned_columns(begun.spec) | {"config_json": json.dumps(theirs)}
    row |= {"attempt": 1, "outcome": "failed", "reason": ""}
    ledger.publish({**row, "run_id": "b" * 12, "log_path": f"{results.parent}/secret"}, [])
    ledger.publish({**row, "run_id": "c" * 12, "log_path": "../secret"}, [])
    (folder.parent / "log.txt").symlink_to(results.parent / "secret")
    linked = f"attempts/{run_id}/log.txt"
    ledger.publish({**row, "run_id": "e" * 12, "log_path": linked}, [])
    queued = results / "slurm/1x1/queued/dd"
    queued.mkdir(parents=True)
    ticket = {"config": theirs, "number": 1, "from_scratch": False, "submission": "x"}
    publish_json(queued / f"{'d' * 12}.json", {"run_id": "d" * 12, **ticket})
    return results


@pytest.fixture
def foreign(made, results):
    """A copy of its own for each test, beside it the secret."""
    shutil.copytree(made, results, symlinks=True)
    shutil.copy(made.parent / "secret", results.parent)
    return results


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_calls_what_lies_in_a_folder_or_shows_a_file_outside(
    command, foreign, called, capsys
):
    shown = COMMANDS[command](foreign)

    assert not called.exists()
    report = foreign.with_name(f"{foreign.name}.html")
    texts = [str(shown), capsys.readouterr().out, report.read_text() if report.exists() else ""]
    assert SECRET not in "".join(texts)


def test_a_sweep_calls_nothing_of_other_runs_in_its_folder(foreign, called, sweep_here):
    assert sweep_here(foreign, *SHORT, "batch=3840") == 0  # tidies up, and has its result

    assert not called.exists()
    assert not Ledger(foreign).active()


def test_an_attempt_in_the_folder_of_another_run_is_not_known(foreign):
    ledger, run_id = Ledger(foreign), running(foreign)
    shutil.copytree(ledger.run_folder(run_id), ledger.run_folder("f" * 12))

    assert Attempt.load(ledger, run_id, 1)
    assert Attempt.load(ledger, "f" * 12, 1) is None


def test_a_job_refuses_a_ticket_that_is_not_the_run_of_its_id(foreign, called, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    policy = SimpleNamespace(runs_at_a_time=1, runs_per_gpu=1)
    queue = Queue(Ledger(foreign), "slurm/1x1")

    assert Job(Ledger(foreign), queue, policy, FirstSignal()).run(1) == 1

    assert "a ticket must be of this version of sweeper" in capsys.readouterr().out
    assert not called.exists()


def test_the_rate_of_a_rule_of_ones_own_is_noted_for_who_finishes_its_row(results, config, called):
    ledger = Ledger(results)
    ledger.prepare()
    rule = {"name": "mine", "_target_": "foreign_code.rule"}
    begun = Attempt.begin(run_spec(config(lr_rule=rule)), ledger, 1)  # the user's own command
    called.unlink()

    found = Attempt.load(ledger, begun.spec.run_id, 1)

    assert found.spec.schedule.peak_lr == 1.0
    assert not called.exists()
