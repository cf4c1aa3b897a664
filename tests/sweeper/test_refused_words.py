"""Words that cannot be planned are refused in sentences, which stand whole in refused_words.txt."""

import shlex
import sys
from pathlib import Path

import pytest

from sweeper.commands.refusals import refuse
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


@pytest.mark.parametrize(("words", "said"), read_answers().items())
def test_words_that_cannot_be_planned_are_refused_in_sentences(
    grid, tmp_path, monkeypatch, capsys, words, said
):
    typed = shlex.split(words)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sweeper", "-m", *typed])
    capsys.readouterr()

    with pytest.raises(ValueError, match=r".") as refused:
        plan(grid(*typed), Ledger(Path("results")))

    assert refuse(refused.value) == 2
    assert capsys.readouterr().err.splitlines() == ["Nothing was started.", *said]
