"""Mirrors of the curves: off by default, and never the end of a run."""

import contextlib
import shutil
import sqlite3
import time

import pandas as pd
import pytest
import yaml
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from lightning_modules.callbacks.loggers import Mirror
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import claim_tasks, plan
from sweeper.spec.run_spec import run_spec
from sweeper.store.ledger import Ledger


@pytest.fixture
def train(grid, results):
    """One short run with a logger; its row and its attempt's folder."""

    def run(*words):
        ledger = Ledger(results)
        ledger.prepare()
        short = ["epochs=2", "warmup=0", "schedule=constant", "batch=1024"]
        short += ["data.num_train_examples=2048"]
        planned = plan(grid(*short, *words), ledger)
        to_do = claim_tasks(planned, ledger, retry=None, rerun=None)
        for _ in run_here(to_do, ledger, Machine(cores=2)):
            pass
        (row,) = pd.read_parquet(results / "runs").to_dict("records")
        return row, (results / row["log_path"]).parent

    return run


def test_csv_mirrors_the_curve(train, results):
    row, folder = train("logger=csv")

    mirrored = pd.read_csv(folder / "csv" / "metrics.csv")
    curve = pd.read_parquet(results / "curves").sort_values("epoch")
    assert row["outcome"] == "finished"
    assert list(mirrored.val_accuracy) == pytest.approx(list(curve.val_accuracy))


def test_no_logger_is_used_unless_asked_for(train):
    _, folder = train()

    assert not (folder / "csv").exists()


@pytest.mark.parametrize("target", ["provoked.UnreachableLogger", "no_such_package.Logger"])
def test_a_logger_that_cannot_be_reached_does_not_fail_the_run(train, target):
    row, folder = train(f"logger._target_={target}")

    assert row["outcome"] == "finished"
    assert "logger: disabled after" in (folder / "log.txt").read_text()


def test_a_logger_does_not_change_the_runs_identity(grid):
    (plain,), (mirrored,) = grid("batch=3840"), grid("batch=3840", "logger=csv")

    assert run_spec(plain).run_id == run_spec(mirrored).run_id


@pytest.fixture
def mirror(grid, tmp_path):
    """Mirror two epochs of a run; the folder that is mirrored into."""

    def show(name, *words):
        pytest.importorskip(name)
        (config,) = grid("batch=3840", f"logger={name}", *words)
        folder = tmp_path / "attempts" / "run" / "001"
        shown = Mirror(run_spec(config), folder, rank=0)
        for epoch, accuracy in ((1, 0.5), (2, 0.75)):
            unmeasured = {"noise_scale": None}
            shown.log_rows(
                [{"epoch": epoch, "step": 16 * epoch, "val_accuracy": accuracy, **unmeasured}]
            )
        shown.close("finished")
        return folder

    return show


def test_a_row_is_mirrored_at_its_step_without_what_was_not_measured(mirror):
    rows = pd.read_csv(mirror("csv") / "csv" / "metrics.csv")

    assert set(rows.columns) == {"epoch", "step", "val_accuracy"}
    assert list(zip(rows.step, rows.val_accuracy, strict=True)) == [(16, 0.5), (32, 0.75)]


def test_the_config_of_the_run_is_mirrored(mirror):
    settings = yaml.safe_load((mirror("csv") / "csv" / "hparams.yaml").read_text())

    assert (settings["batch"], settings["optimizer"]["name"]) == (3840, "sgd")


@pytest.mark.parametrize(("outcome", "status"), [("finished", "success"), ("diverged", "failed")])
def test_a_tool_gets_the_outcome_and_its_own_run_is_then_finished(
    grid, tmp_path, monkeypatch, outcome, status
):
    """W&B's runs have a method `finish`, without which a worker may exit before it has written."""
    ended = []
    monkeypatch.setattr(CSVLogger, "finalize", lambda _, status: ended.append(status))
    monkeypatch.setattr(ExperimentWriter, "finish", lambda _: ended.append("run"), raising=False)
    (config,) = grid("batch=3840", "logger=csv")

    Mirror(run_spec(config), tmp_path, rank=0).close(outcome)

    assert ended == [status, "run"]


def test_a_mirror_that_breaks_is_disabled_once(grid, tmp_path, capsys):
    (config,) = grid("batch=3840", "logger=csv")
    shown = Mirror(run_spec(config), tmp_path, rank=0)
    shown.log_rows([{"step": 16}])
    shutil.rmtree(tmp_path / "csv")
    (tmp_path / "csv").write_text("in the way")

    shown.log_rows([{"step": 32}, {"step": 48}])
    shown.close("finished")

    assert capsys.readouterr().err.count("logger: disabled after") == 1
    assert (tmp_path / "csv").read_text() == "in the way"


def test_other_ranks_mirror_nothing(grid, tmp_path):
    (config,) = grid("batch=3840", "logger=csv")

    Mirror(run_spec(config), tmp_path, rank=1).log_rows([{"step": 16}])

    assert not any(tmp_path.iterdir())


def test_tensorboard_has_a_run_once_by_its_name_however_often_it_resumes(mirror, tmp_path):
    mirror("tensorboard")
    mirror("tensorboard")

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (tmp_path / "tensorboard").iterdir()
    events = EventAccumulator(str(run)).Reload()
    assert run.name.startswith("batch=3840 warmup=5 lr_rule=linear seed=0 ")
    assert [(e.step, e.value) for e in events.Scalars("val_accuracy")] == [(16, 0.5), (32, 0.75)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_wandb_offline_has_every_epoch_on_disk_soon_after_the_run_ends(mirror):
    """A worker leaves without the exit hooks; a process of W&B's own writes a little later."""
    folder = mirror("wandb", "tags=[paper,second try]")

    (written,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 30
    while (epochs := written.read_bytes().count(b"val_accuracy")) < 2:
        assert time.monotonic() < deadline, f"{epochs} of 2 epochs are written"
        time.sleep(0.1)
    from wandb.proto.wandb_internal_pb2 import RunRecord

    sweep = "/".join(folder.parents[2].parts[-2:])
    for record in (RunRecord(run_group=sweep), RunRecord(tags=["paper", "second try"])):
        assert record.SerializeToString() in written.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_mlflow_stores_what_is_mirrored(mirror, tmp_path):
    mirror("mlflow", f"logger.tracking_uri=sqlite:///{tmp_path}/mlflow.db")

    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        metrics = database.execute(
            "select step, value from metrics where key = 'val_accuracy' order by step"
        ).fetchall()
        runs = database.execute("select status from runs").fetchall()
    assert metrics == [(16, 0.5), (32, 0.75)]
    assert runs == [("FINISHED",)]
