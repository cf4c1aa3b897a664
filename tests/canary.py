"""Imported or called only where a user's own command says so: leaves a file that tells."""

import os
import sys
from pathlib import Path


def _sing(song: str) -> None:
    if folder := os.environ.get("CANARY"):
        Path(folder, song).touch()


_sing("imported")


def sings(*_, **__):
    _sing("called")
    return 0.1


def raises(*_, **__):
    raise KeyError


def leaves(*_, **__):
    sys.exit(3)
