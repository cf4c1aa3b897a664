"""The results folder is named alike on every command line."""

import pytest

from sweeper.console.results_folder import spell_folder

WAYS = (["results=out"], ["--results=out"], ["--results", "out"], ["out"])


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize(
    ("command", "words", "read"),
    [
        ("status", ["--watch"], ["--watch", "--results=out"]),
        ("logs", ["0123", "-f"], ["0123", "-f", "--results=out"]),
        ("delete", ["0123", "4567"], ["0123", "4567", "--results=out"]),
        ("compact", [], ["out"]),
        ("analysis", ["report"], ["report", "out"]),
        ("doctor", [], ["out"]),
        ("doctor", ["module._target_=a.B"], ["module._target_=a.B", "results=out"]),
        ("run", ["batch=1,2"], ["batch=1,2", "results=out"]),
        ("plan", ["--config-dir", "conf"], ["--config-dir", "conf", "results=out"]),
    ],
)  # fmt: skip
def test_every_command_takes_the_folder_in_every_way(
    command, words, read, way, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("out", "conf"):
        (tmp_path / name).mkdir()

    assert spell_folder(command, [*words, *way]) == read


def test_a_word_that_is_no_folder_is_a_run_and_a_folder_may_be_named_like_an_override(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results=a").mkdir()

    assert spell_folder("status", ["out"]) == ["out"]
    assert spell_folder("status", [""]) == [""]
    assert spell_folder("plan", ["x=" + 300 * "y"]) == ["x=" + 300 * "y"]
    assert spell_folder("compact", ["results=a"]) == ["results=a"]
    assert spell_folder("sweep", ["-m", "batch=1", "--results", "b"]) == [
        "-m",
        "batch=1",
        "results=b",
    ]


@pytest.mark.parametrize("word", ["results=nowhere", "--results=nowhere", "nowhere"])
@pytest.mark.parametrize(
    "words",
    [
        *("status", "stop", "compact", "analysis", "analysis figures", "work"),
        *("logs 01", "delete 01", "sharpness 01"),
    ],
)
def test_a_folder_that_does_not_exist_is_refused_in_a_sentence(
    command, words, word, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if words.endswith("01") and word == "nowhere":
        pytest.skip("a bare word is a run here")

    said = command(*words.split(), word)

    assert said.returncode == 2
    assert len((said.stdout + said.stderr).splitlines()) == 1
    assert "nowhere" in said.stdout + said.stderr
    assert not [*tmp_path.iterdir()]
