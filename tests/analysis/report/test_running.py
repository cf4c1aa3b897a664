"""The watched page shows what trains and what waits, from what runs leave behind, reading only."""

import json
import os

import pytest

from analysis.report.data import read_tables, shown_data, with_running
from analysis.report.running import running_runs
from analysis.report.watch import Watcher
from sweeper.launch.slurm.tickets import Ticket, Tickets
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import this_process
from sweeper.store.pending_runs import list_pending, pending_runs
from sweeper.store.step_progress import StepProgress, write_step_progress


@pytest.fixture
def spec(config):
    return run_spec(config(batch=3840, warmup=0, seed=7))


def epoch(number: int, accuracy: float) -> str:
    """A line as a worker writes it."""
    row = {"epoch": number, "step": 16 * number, "examples_seen": 61440 * number, "lr": 0.1}
    row |= {"train_loss": 0.5, "train_accuracy": 0.5, "val_loss": 0.5, "val_accuracy": accuracy}
    return json.dumps(row | {"elapsed_s": 2.0 * number}) + "\n"


def begun(spec, ledger, text: str) -> Attempt:
    attempt = Attempt.begin(spec, ledger, 1)
    assert attempt is not None
    (attempt.folder / "progress.jsonl").write_text(text)
    return attempt


def inside(attempt: Attempt, *, step: int) -> None:
    """It reports that it is in its second epoch."""
    reported = {"epoch": 2, "steps": 100, "resumed_at": 0.0}
    reported |= {"examples_per_s": 10.0, "left_s": 60.0}
    write_step_progress(StepProgress.model_validate({**reported, "step": step}), attempt.folder)


def test_a_run_that_trains_is_a_row_with_its_curve_so_far(ledger, spec):
    begun(spec, ledger, epoch(1, 0.5) + epoch(2, 0.75) + '{"epoch": 3, "st')

    runs, curves = running_runs([str(ledger.results)])

    (row,) = runs.to_dict("records")
    assert (row["run_id"], row["outcome"], row["epochs_completed"]) == (spec.run_id, "running", 2)
    assert (row["global_batch"], row["seed"], row["val_accuracy"]) == (3840, 7, 0.75)
    assert row["reason"].startswith("epoch 2 of 30; heartbeat 0 s ago on ")
    assert curves["val_accuracy"].tolist() == [0.5, 0.75]


def test_a_run_whose_launcher_has_gone_is_silent(ledger, spec):
    attempt = begun(spec, ledger, "")
    lease = attempt.folder / "lease.json"
    lease.write_text(json.dumps(json.loads(lease.read_text()) | {"born": "0"}))

    runs, _ = running_runs([str(ledger.results)])

    assert runs["outcome"].tolist() == ["silent"]


@pytest.mark.parametrize(("age_s", "state"), [(10, "running"), (100, "silent")])
def test_on_another_machine_the_heartbeat_tells(ledger, spec, age_s, state):
    attempt = begun(spec, ledger, "")
    path = attempt.folder / "lease.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "elsewhere"}))
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))

    runs, _ = running_runs([str(ledger.results)])

    assert runs["outcome"].tolist() == [state]


def test_what_a_sweep_has_still_to_start_is_queued_until_it_starts(ledger, config):
    specs = [run_spec(config(batch=3840, seed=seed)) for seed in range(3)]
    with list_pending([(spec, 1) for spec in specs], ledger.results):
        begun(specs[0], ledger, "")
        runs, _ = running_runs([str(ledger.results)])
    after, _ = running_runs([str(ledger.results)])

    assert dict(zip(runs["run_id"], runs["outcome"], strict=True)) == {
        specs[0].run_id: "running",
        specs[1].run_id: "queued",
        specs[2].run_id: "queued",
    }
    assert after["outcome"].tolist() == ["running"]
    assert list(ledger.results.glob(".pending*")) == []


def test_the_list_of_a_killed_sweep_is_not_shown_and_is_removed_by_the_next(ledger, spec):
    holder = {"host": this_process().host, "boot": this_process().boot, "pid": 1, "born": "never"}
    path = ledger.results / ".pending-here-1.json"
    path.write_text(json.dumps({"holder": holder, "runs": [{"run_id": spec.run_id}]}))

    assert pending_runs(ledger.results) == []
    with list_pending([], ledger.results):
        assert not path.exists()


def test_a_run_submitted_to_slurm_is_queued(ledger, spec):
    ticket = Ticket(
        run_id=spec.run_id,
        config=spec.config.resolved,
        number=1,
        from_scratch=False,
        submission="s",
        index=0,
    )
    Tickets(ledger).claim(ticket, instead_of=None)

    runs, _ = running_runs([str(ledger.results)])

    (row,) = runs.to_dict("records")
    assert (row["outcome"], row["reason"]) == ("queued", "submitted to SLURM")


def test_a_run_tried_again_stands_in_place_of_its_failed_attempt(ledger, spec):
    attempt = Attempt.begin(spec, ledger, 1)
    assert attempt is not None
    attempt.end(End(outcome=Outcome.FAILED, reason="a fault"), ledger)
    Attempt.begin(spec, ledger, 2)

    found = with_running(read_tables([str(ledger.results)]), *running_runs([str(ledger.results)]))

    assert found.runs[["outcome", "attempt"]].to_numpy().tolist() == [["running", 2]]


def test_the_page_of_a_first_run_is_about_the_metric_that_it_names(ledger, config):
    spec = run_spec(config(batch=3840, warmup=0, metric="val/rmse", metric_mode="min"))
    row = json.loads(epoch(1, 0.5)) | {"metrics": {"val/rmse": 1.25}}
    begun(spec, ledger, json.dumps(row) + "\n")

    tables = with_running(read_tables([str(ledger.results)]), *running_runs([str(ledger.results)]))
    data = shown_data(tables, [str(ledger.results)], "watch")

    assert data["metric"] == {"name": "val/rmse", "mode": "min"}
    assert tables.runs["val/rmse"].tolist() == tables.curves["val/rmse"].tolist() == [1.25]
    assert "val/rmse" in data["measures"]


def test_the_page_counts_runs_that_have_not_ended(ledger, spec):
    begun(spec, ledger, epoch(1, 0.5))
    tables = with_running(read_tables([str(ledger.results)]), *running_runs([str(ledger.results)]))

    data = shown_data(tables, [str(ledger.results)], "watch")

    assert dict(data["summary"])["Runs"] == "1: 1 running"
    assert [curve[0] for _, curve, _ in data["runs"].values()] == [[1]]


def test_the_page_is_new_when_a_tenth_of_an_epoch_ends_and_only_then(ledger, spec):
    attempt = begun(spec, ledger, epoch(1, 0.5))
    watcher = Watcher([str(ledger.results)], "watch")
    inside(attempt, step=80)
    versions = [watcher.version()]

    os.utime(attempt.folder / "lease.json")
    inside(attempt, step=89)
    versions.append(watcher.version())
    inside(attempt, step=90)
    versions.append(watcher.version())
    (attempt.folder / "progress.jsonl").write_text(epoch(1, 0.5) + epoch(2, 0.6))
    versions.append(watcher.version())

    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_a_run_that_trains_says_where_it_is_inside_its_epoch(ledger, spec):
    attempt = begun(spec, ledger, epoch(1, 0.5))
    inside(attempt, step=80)
    runs, _ = running_runs([str(ledger.results)])

    assert runs.reason[0].startswith("epoch 1 of 30, then step 80 of 100; heartbeat 0 s ago on ")

    (attempt.folder / "progress.jsonl").write_text(epoch(1, 0.5) + epoch(2, 0.6))
    runs, _ = running_runs([str(ledger.results)])

    assert runs.reason[0].startswith("epoch 2 of 30; heartbeat")


def test_watching_leaves_no_trace_in_the_results(ledger, spec):
    begun(spec, ledger, epoch(1, 0.5))
    before = sorted(ledger.results.rglob("*"))

    Watcher([str(ledger.results)], "watch").data_json()

    assert sorted(ledger.results.rglob("*")) == before
