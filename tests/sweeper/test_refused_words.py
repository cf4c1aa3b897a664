"""Words that cannot be planned are refused in sentences, which stand whole in refused_words.txt."""

import shlex
import sys
from pathlib import Path

import pytest

from sweeper.commands.overrides import expand, merge_preset, preset_overrides
from sweeper.commands.refusals import refuse
from sweeper.commands.tuning_overrides import sort_overrides
from sweeper.planning.plan import plan
from sweeper.store.ledger import Ledger


def read_answers() -> dict[str, list[str]]:
    """The sentences by the words of a command."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("refused_words.txt").read_text().splitlines():
        if line.startswith("    "):
            found[[*found][-1]].append(line.strip())
        elif line and not line.startswith("#"):
            found[line] = []
    return found


def plan_words(loader, typed):
    words = merge_preset(preset_overrides(loader, typed), typed)
    if "hydra/sweeper=optuna" in typed:
        sort_overrides(words, loader)
    plan(expand(loader, words), Ledger(Path("results")))


@pytest.mark.parametrize(("words", "said"), read_answers().items())
def test_words_that_cannot_be_planned_are_refused_in_sentences(
    loader, tmp_path, monkeypatch, capsys, words, said
):
    typed = shlex.split(words)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sweeper", "-m", *typed])
    capsys.readouterr()

    with pytest.raises(ValueError, match=r".") as refused:
        plan_words(loader, typed)

    assert refuse(refused.value) == 2
    assert capsys.readouterr().err.splitlines() == ["Nothing was started.", *said]


@pytest.mark.parametrize("key", ["seed", "tags", "optimizer.betas", "+data.x"])
@pytest.mark.parametrize("depth", [60, 200, 2000])
def test_brackets_too_deep_to_be_read_are_refused(grid, key, depth):
    """As a value, or as one of several."""
    for value in ("[" * depth + "]" * depth, "1," + "[" * depth + "1" + "]" * depth):
        with pytest.raises(ValueError, match="must have brackets nested at most 50 deep; got "):
            plan(grid(f"{key}={value}"), Ledger(Path("results")))


@pytest.mark.slow
@pytest.mark.parametrize("command_words", [("-m",), ("equivalence",), ("doctor",)], ids=" ".join)
@pytest.mark.parametrize(("words", "said"), [*read_answers().items()][::12])
def test_every_command_refuses_them_in_the_same_sentences(
    command, command_words, words, said, tmp_path, monkeypatch
):
    typed = shlex.split(words)
    absent = {"data=images", "model=resnet8,resnet20", "loss_items=labels"}
    if words == "512" or absent & {*typed}:
        pytest.skip("a folder for the doctor; data or a module that are not there, as it says")
    if command_words == ("-m",) and words.startswith('"trainer={'):
        pytest.skip("Hydra does not find the key, and is told so with the key to set")
    monkeypatch.chdir(tmp_path)

    answer = command(*command_words, *typed)

    assert answer.returncode == 2
    assert answer.stderr.splitlines() == ["Nothing was started.", *said]
