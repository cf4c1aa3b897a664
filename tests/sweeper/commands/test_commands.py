"""Looking before and watching: plan, status and compact as a user calls them."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pandas as pd
import pytest

from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.lease import EXPIRES_S, LEASE, release, this_process
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json

SHORT = ["epochs=1", "warmup=0", "schedule=constant", "data.num_train_examples=15360"]


@pytest.fixture(scope="module")
def results(sweep_here, tmp_path_factory):
    """A sweep of three runs, one of which fails."""
    folder = tmp_path_factory.mktemp("commands") / "results"
    assert sweep_here(folder, *SHORT, "batch=3840,7680") == 0
    assert sweep_here(folder, *SHORT, "batch=3840", "model._target_=provoked.Raising") == 1
    return folder


def test_plan_tells_steps_and_rates_and_what_the_ledger_has(command, results):
    words = [*SHORT, "batch=3840,7680,15360", f"results={results}"]

    found = json.loads(command("plan", "--json", "--no-memory", *words).stdout)
    planned = found["runs"]

    assert [line["steps_per_epoch"] for line in planned] == [4, 2, 1]
    assert [line["peak_lr"] for line in planned] == pytest.approx([0.375, 0.75, 1.5])
    assert [line["ledger"] for line in planned] == ["finished", "finished", "new"]
    assert all(line["predicted_s"] > 0 for line in planned)
    assert found["device_hours"] == pytest.approx(planned[2]["predicted_s"] / 3600)


def test_plan_prints_a_table_and_starts_nothing(command, results):
    before = sorted(results.rglob("*"))

    words = [*SHORT, "batch=15360", "warmup=0", f"results={results}", "--no-memory"]
    said = command("plan", *words).stdout

    assert "batch=15360" in said
    assert "1 run, new. Nothing was started." in said
    assert sorted(results.rglob("*")) == before


@pytest.mark.parametrize(
    "module", ["sweeper.commands.show_plan", "sweeper.commands.status", "sweeper.cli"]
)
def test_looking_imports_no_torch(module):
    script = f"import {module}, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_skipping_finished_runs_imports_no_torch(results):
    words = ["-m", *SHORT, "batch=3840,7680", f"results={results}"]
    script = (
        "import runpy, sys; sys.argv = ['sweeper', *sys.argv[1:]]\n"
        "try: runpy.run_module('sweeper', run_name='__main__')\n"
        "except SystemExit as end: print('code', end.code, 'torch' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, *words], text=True, capture_output=True, check=True
    )

    assert "code 0 False" in done.stdout


def test_status_counts_and_names_failures_with_reason_and_log(command, results):
    said = command("status", results).stdout
    found = json.loads(command("status", results, "--json").stdout)

    assert found["counts"] == {"finished": 2, "failed": 1}
    (failure,) = found["without_result"]
    assert failure["reason"] == "RuntimeError: the third micro-batch is cursed"
    assert (results / failure["log_path"]).exists()
    assert failure["reason"] in said
    assert failure["log_path"] in said


def test_status_of_one_run_shows_config_attempts_and_curve(command, results):
    run_id = pd.read_parquet(results / "runs").query("outcome == 'finished'").run_id.iloc[0]

    shown = command("status", run_id[:8], "--results", results)
    found = json.loads(command("status", run_id, "--results", results, "--json").stdout)

    assert found["config"]["epochs"] == 1
    assert found["attempts"][0]["end"] == "finished: trained 1 epoch"
    assert found["curve"][0]["epoch"] == 1
    assert shown.returncode == 0, shown.stderr
    assert "attempt 1, started" in shown.stdout
    assert "epoch=1 step=" in shown.stdout


def test_status_of_nothing_is_a_sentence(command):
    refused = command("status", "nowhere")

    assert refused.returncode == 2
    assert "status needs a results folder or a run id; got nowhere. Run a sweep" in refused.stderr


def test_status_shows_what_runs_elsewhere_in_a_folder_that_it_may_only_read(
    tmp_path, default_config
):
    """Root obeys the permissions of files without its privilege to override them."""
    folder = tmp_path / "results"
    for seed, age_s in enumerate((-3600, 10 * EXPIRES_S)):  # however long the command takes
        spec = run_spec({**default_config, "seed": seed})
        attempt = Attempt.begin(spec, prepared(folder), 1)
        release(attempt.folder)  # this process has a heartbeat
        holder = replace(this_process(), host="elsewhere")
        publish_json(attempt.folder / LEASE, asdict(holder))
        os.utime(attempt.folder / LEASE, (time.time() - age_s, time.time() - age_s))
        attempt.folder.chmod(0o500)
    words = [sys.executable, "-m", "sweeper", "status", str(folder), "--json"]
    if os.geteuid() == 0:
        words = ["setpriv", "--bounding-set=-dac_override", *words]

    status = subprocess.run(words, text=True, capture_output=True, check=True)

    running = json.loads(status.stdout)["running"]
    assert sorted(line["state"] for line in running) == ["abandoned", "running"]


def prepared(folder) -> Ledger:
    ledger = Ledger(folder)
    ledger.prepare()
    return ledger


def test_compacting_changes_no_row_and_no_verdict(sweep_here, command, results, capsys):
    def tables():
        runs = pd.read_parquet(results / "runs").sort_values("run_id", ignore_index=True)
        curves = pd.read_parquet(results / "curves")
        return runs, curves.sort_values(["run_id", "epoch"], ignore_index=True)

    before = tables()
    said = command("compact", results).stdout

    assert "2 runs merged" in said
    assert len(list((results / "runs").glob("compact-*.parquet"))) == 1
    assert len(list((results / "runs").glob("*.parquet"))) == 2  # the failed run stays by itself
    for old, new in zip(before, tables(), strict=True):
        pd.testing.assert_frame_equal(old, new)
    assert sweep_here(results, *SHORT, "batch=3840,7680") == 0
    assert "2 of 2 runs already have a result." in capsys.readouterr().out


def test_a_finished_run_is_shown_with_the_layout_that_it_was_trained_on(
    sweep_here, results, capsys
):
    words = (*SHORT, "batch=3840")
    assert sweep_here(results, *words) == 0
    capsys.readouterr()

    assert sweep_here(results, *words, "micro_batch=640") == 0

    said = capsys.readouterr().out
    assert "layout=1x3840x1" in said
    assert "640" not in said


def test_starting_over_takes_merged_rows_out_again(sweep_here, results):
    assert sweep_here(results, *SHORT, "batch=3840", "rerun=all") == 0

    runs = pd.read_parquet(results / "runs").query("outcome == 'finished'")
    assert runs.run_id.is_unique
    assert sorted(runs.attempt) == [1, 2]
    assert len(pd.read_parquet(results / "superseded/runs")) == 1


def test_a_run_that_is_deleted_is_trained_again_and_its_row_is_kept(sweep_here, command, tmp_path):
    words = [*SHORT, "batch=7680,15360"]
    sweep_here(tmp_path, *words)
    command("compact", tmp_path)
    before = pd.read_parquet(tmp_path / "runs")

    command("delete", before.run_id[0][:6], "--results", tmp_path)

    assert list(pd.read_parquet(tmp_path / "runs").run_id) == [before.run_id[1]]
    assert list(pd.read_parquet(tmp_path / "superseded/runs").run_id) == [before.run_id[0]]
    assert not (tmp_path / "attempts" / before.run_id[0]).exists()
    said = command("status", tmp_path).stdout
    assert "superseded/ keeps earlier attempts and deleted runs: 1 finished\n" in said
    assert sweep_here(tmp_path, *words) == 0
    assert {*pd.read_parquet(tmp_path / "runs").run_id} == {*before.run_id}


def test_what_runs_or_is_unknown_is_not_deleted(command, grid, tmp_path):
    ledger = Ledger(tmp_path)
    ledger.prepare()
    attempt = Attempt.begin(run_spec(grid(*SHORT)[0]), ledger, 1)

    held = command("delete", attempt.spec.run_id, "--results", tmp_path)
    unknown = command("delete", "abc", "--results", tmp_path)

    assert "which is running. Stop its sweep first." in held.stderr
    assert "A run must be named by its id; got abc." in unknown.stderr
    assert held.returncode == unknown.returncode == 2
    assert attempt.folder.is_dir()
