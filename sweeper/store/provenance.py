"""The code behind a run: its commit and the versions of its libraries."""

import json
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def versions() -> str:
    """Versions of Python and the main libraries, as JSON."""
    names = ("torch", "torchvision", "pytorch-lightning", "hydra-core", "numpy")
    found = {name: version(name) for name in names}
    return json.dumps({"python": platform.python_version(), **found})


@cache
def git_commit() -> str | None:
    """The commit of this code, with -dirty if the checkout has changes; None if it has no git."""
    if shutil.which("git") is None:  # as in a container
        return None
    root = Path(__file__).parents[2]
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None if described.returncode == 0 else None
