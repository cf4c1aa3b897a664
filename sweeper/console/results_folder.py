"""The results folder on a command line: `results=F`, `--results F` and a bare word are the same."""

import re
from collections.abc import Sequence
from pathlib import Path

#: Commands whose words may be run ids, so that the folder is an option.
_WITH_RUNS = ("status", "stop", "logs", "delete", "sharpness")
#: Those that take a folder as a word, or nothing but overrides.
_AS_WORD, _AS_OVERRIDE = ("compact", "doctor", "analysis"), ("run", "sweep", "plan", "equivalence")
_FOLDER_OF_CONFIGS = ("--config-dir", "-cd")


def spell_folder(command: str, words: Sequence[str]) -> list[str]:
    """Words of a command with the results folder as that command reads it.

    A bare word is the folder if there is one of this name; in `sweep`, which has no verb before
    it, and in `analysis`, which takes several, it stays as it is.
    """
    folders, rest = list[str](), list[str]()
    for before, word in zip(["", *words], words, strict=False):
        is_bare = command not in ("sweep", "analysis") and before not in _FOLDER_OF_CONFIGS
        if before == "--results" or (word and is_bare and Path(word).is_dir()):
            folders.append(word)
        elif (found := re.fullmatch(r"(?:--)?results=(.*)", word)) and not Path(word).is_dir():
            folders.append(found[1])
        elif word != "--results":
            rest.append(word)
    if command in _WITH_RUNS:
        return [*rest, *(f"--results={folder}" for folder in folders)]
    if command in _AS_OVERRIDE or any("=" in word for word in rest if command == "doctor"):
        return [*rest, *(f"results={folder}" for folder in folders)]
    return [*rest, *folders]
