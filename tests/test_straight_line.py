"""The whole straight line as a user sees it: words, runs, rows, figures; again, and nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main

WORDS = [
    "batch=3840,15360", "warmup=0,1", "epochs=2", "schedule=constant",
    "data.num_train_examples=30720",
]  # fmt: skip


def sweep(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sweeper", "-m", *words, f"results={results}"]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=900)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    results = tmp_path_factory.mktemp("line") / "results"
    return results, sweep(results, *WORDS)


def test_every_run_is_a_row_that_plain_pandas_reads(done):
    results, command = done
    assert command.returncode == 0, command.stderr

    runs = pd.read_parquet(results / "runs").sort_values(["global_batch", "warmup_epochs"])

    assert list(zip(runs.global_batch, runs.warmup_epochs, strict=True)) == [
        (3840, 0.0),
        (3840, 1.0),
        (15360, 0.0),
        (15360, 1.0),
    ]
    assert set(runs.outcome) == {"finished"}
    assert runs.run_id.is_unique
    assert (runs.realised_batch_min == runs.global_batch).all()
    assert (runs.realised_batch_max == runs.global_batch).all()
    assert list(runs.steps_per_epoch) == [8, 8, 2, 2]
    assert list(runs.steps) == [16, 16, 4, 4]
    assert list(runs.peak_lr) == pytest.approx(list(runs.base_lr * runs.global_batch / 256))
    assert (runs.num_parameters == 13_818).all()
    assert runs.val_accuracy.between(0, 1).all()
    assert runs.lr_series_hash.is_unique
    assert runs.data_about.str.contains("1,797 real images").all()
    assert (runs.num_train_examples == 30_720).all()
    assert str(runs.started_at.dt.tz) == "UTC"
    assert json.loads(runs.config_json.iloc[0])["batch"] == 3840


def test_every_epoch_is_a_row_of_the_curves(done):
    results, _ = done

    curves = pd.read_parquet(results / "curves").merge(
        pd.read_parquet(results / "runs")[["run_id", "global_batch", "val_accuracy"]],
        on="run_id",
        suffixes=("", "_final"),
    )

    assert (curves.groupby("run_id").epoch.apply(list).map(tuple) == (1, 2)).all()
    assert (curves.examples_seen == curves.step * curves.global_batch).all()
    last = curves[curves.epoch == 2]
    assert (last.val_accuracy == last.val_accuracy_final).all()
    assert curves.train_loss.gt(0).all()
    assert curves.elapsed_s.gt(0).all()


def test_the_realised_learning_rate_ends_at_the_peak(done):
    """Warmup ends before the last step of epoch 2, so its last rate is the peak."""
    results, _ = done

    curves = pd.read_parquet(results / "curves").merge(
        pd.read_parquet(results / "runs")[["run_id", "peak_lr", "base_lr"]], on="run_id"
    )

    last = curves[curves.epoch == 2]
    assert list(last.lr) == pytest.approx(list(last.peak_lr))


def test_the_output_is_plain_lines_and_a_summary(done):
    results, command = done

    assert command.stdout.count("start    batch=") == 4
    assert command.stdout.count("finished batch=") == 4
    assert f"Results: {results}" in command.stdout
    assert "\x1b[" not in command.stdout


def test_the_same_command_again_trains_nothing(done):
    results, _ = done
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file()}

    again = sweep(results, *WORDS)

    assert again.returncode == 0
    assert "4 of 4 runs already have a result." in again.stdout
    assert before == {p: p.stat().st_mtime_ns for p in results.rglob("*") if p.is_file()}


def test_the_figures_are_drawn_from_the_tables(done, tmp_path):
    results, _ = done

    assert main(["figures", str(results), "--out", str(tmp_path)]) == 0

    suffixes = [path.suffix for path in tmp_path.rglob("*") if path.is_file()]
    assert suffixes.count(".png") == suffixes.count(".pdf") >= 3


@pytest.mark.slow
def test_device_counts_of_one_grid_may_differ_and_each_run_happens_once(
    sweep_here, results, capsys
):
    """A second rank repeats nothing (with Lightning's own launcher it repeats the sweep)."""
    words = ["epochs=1", "warmup=0", "schedule=constant", "batch=3840"]
    for devices, seed in ((1, 0), (2, 1), (1, 2)):
        assert sweep_here(results, *words, f"devices={devices}", f"seed={seed}") == 0
    capsys.readouterr()
    assert sweep_here(results, *words, "devices=1,2,1", "seed=0,1,2") == 0

    runs = pd.read_parquet(results / "runs").sort_values("seed")

    assert list(runs.world_size) == [1, 2, 1]
    assert list(runs.attempt) == [1, 1, 1]
    assert (runs.steps == 16).all()
    assert (runs.realised_batch_min == 3840).all()
    assert "6 points of the grid are the same run as another" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("batc=3840", "batc must be a config key; got batc=3840. Did you mean batch?"),
        ("lr_rule=sqr", "got lr_rule=sqr. Did you mean lr_rule=sqrt?"),
        ("warmup=0,40", "warmup must be shorter than the training; got warmup=40 of epochs=30."),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(results, word, sentence):
    refused = sweep(results, word)

    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not results.exists()


def test_results_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").touch()

    refused = sweep(tmp_path / "file" / "results", "epochs=1", "warmup=0")

    assert refused.returncode == 2
    assert "results must be the path of a folder; got results=" in refused.stderr
