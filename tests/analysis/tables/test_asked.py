"""Where a command cannot write is said before anything is read."""

from pathlib import Path

import numpy as np
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_results

from analysis.cli import main


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("report", "nosuch/x.html"), ("report", "."), ("claims", "nosuch/x.csv"),
        ("figures", "a file"), ("figures", "a file/x"), ("table", "/dev/null/x"),
        ("tuning", "a file"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_first(
    command, out, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()

    assert main([command, "nosuch", "--out", out]) == 2

    said = capsys.readouterr().out
    assert said.startswith("Error: --out must be ")
    assert said.endswith(f" got {out}. Name another.\n")


@pytest.mark.parametrize(
    ("command", "out"),
    [("report", "new.html"), ("report", "a file"), ("figures", "a/new/folder"), ("figures", ".")],
)
def test_a_place_that_can_be_written_is_not_made_yet(command, out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()

    assert main([command, "nosuch", "--out", out]) == 2

    assert "--out" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


def test_a_folder_may_have_any_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results=a").mkdir()

    assert main(["table", "results=a"]) == 2
    assert "results must hold runs; got results=a, which holds none" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["batch", "figures", "claims", "estimates", "table", "next", "report"]
)
def test_every_command_takes_only_the_runs_that_are_asked_for(
    command, tmp_path, monkeypatch, capsys
):
    """A key may be a column, a word of the command line, or the dotted name of a setting."""
    rng = np.random.default_rng(1)
    runs = simulated_runs(
        [256, 512], [0, 5], 2, accuracy=lambda b, w: 0.7, noise=0.01, rng=rng,
        rules=("linear", "none"),
    )  # fmt: skip
    some = runs[(runs["lr_rule"] == "none") & (runs["warmup_epochs"] == 5)]
    asked = ["--where", "lr_rule.name=none", "--where", "warmup=5.0", "--where", "batch=256,512"]
    for folder, part in {"all": runs, "some": some}.items():
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        write_results(tmp_path / folder / "results", part, simulated_curves(part, 3))
        assert main([command, *(asked if folder == "all" else [])]) == 0

    said, text = capsys.readouterr().out, Path("report.html").is_file()
    if command != "report":
        assert said[: len(said) // 2] == said[len(said) // 2 :]
    assert text == (command == "report")


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("colour=3", "--where must give a column or setting that runs have; got colour=3."),
        ("batch=7", "--where must leave runs; got batch=7, the runs have 256."),
        ("batch", "--where must leave runs; got batch, the runs have 256."),
    ],
)
def test_conditions_that_leave_no_run_are_refused(condition, sentence, tmp_path, capsys):
    write_results(tmp_path, simulated_runs([256], [0], 2, accuracy=lambda b, w: 0.7))

    assert main(["batch", str(tmp_path), "--where", condition]) == 2

    assert capsys.readouterr().out == f"Error: {sentence}\n"
