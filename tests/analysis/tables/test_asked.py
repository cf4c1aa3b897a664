"""Where a command cannot write is said before anything is read."""

import pytest

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
