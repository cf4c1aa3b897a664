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


@pytest.mark.parametrize("word", ["--results", "results=a", "--results=a"])
def test_a_folder_named_as_on_other_command_lines_is_answered_with_the_right_form(word, capsys):
    assert main(["table", "--out", "x", word, "a"]) == 2

    assert capsys.readouterr().out == (
        f"Error: results folders must be given as plain words; got {word}. "
        "Write: python -m analysis table FOLDER\n"
    )


def test_a_folder_may_have_any_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results=a").mkdir()

    assert main(["table", "results=a"]) == 2
    assert "results must hold runs; got results=a, which holds none" in capsys.readouterr().out
