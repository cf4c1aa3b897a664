"""The results folder on a command line: `results=F`, `--results F` and a bare word are the same."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

#: Commands whose words may be run ids, so that the folder is an option.
_WITH_RUNS = ("status", "stop", "logs", "delete", "sharpness")
#: Those that take a sweep's overrides; others take a folder as a word.
_AS_OVERRIDE = ("run", "sweep", "plan", "equivalence")


def spell_folder(command: str, words: Sequence[str]) -> list[str]:
    """Words of a command with the results folder as that command reads it.

    A bare word is the folder if there is one of this name; in `sweep`, which has no verb before
    it, and in `analysis`, which takes several, it stays as it is. ValueError if a command that
    reads the folder is given one that does not exist.
    """
    folders, rest = list[str](), list[str]()
    is_folder = os.path.isdir  # Path refuses words that are too long for a name
    for before, word in zip(["", *words], words, strict=False):
        is_bare = command not in ("sweep", "analysis") and before not in ("--config-dir", "-cd")
        if before == "--results" or (is_bare and is_folder(word)):
            folders.append(word)
        elif (found := re.fullmatch(r"(?:--)?results=(.*)", word)) and not is_folder(word):
            folders.append(found[1])
        elif word != "--results":
            rest.append(word)
    for folder in folders if command not in (*_AS_OVERRIDE, "doctor") else ():
        check_folder(folder)
    if command in _WITH_RUNS:
        return [*rest, *(f"--results={folder}" for folder in folders)]
    has_overrides = command == "doctor" and any("=" in word for word in rest)
    if command in _AS_OVERRIDE or has_overrides:
        return [*rest, *(f"results={folder}" for folder in folders)]
    return [*rest, *folders]


def check_folder(folder: str | Path) -> None:
    """ValueError for a results folder that does not exist."""
    if not Path(folder).is_dir():
        msg = (
            f"results must be a folder that python -m sweeper wrote; got {folder}, which does not "
            "exist. Run a sweep first, or name another folder."
        )
        raise ValueError(msg)
