"""`sweeper.plan`, `run` and `status`: the commands from Python, with their words; frames back."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pandas as pd
from hydra.core.override_parser.types import Quote, QuotedString

from sweeper.spec.outcomes import BAD_INPUT, INTERRUPTED

_LOOK_EVERY_S = 1.0
#: Groups whose class may be the user's own.
_OWN_CLASSES = ("module", "data", "model", "optimizer", "lr_rule", "schedule", "logger")


def plan(*words: str, **settings: Any) -> pd.DataFrame:
    """List every run of a grid with its numbers, as `sweeper plan`; start nothing.

    Args:
        words: as on the command line: `"+recipe=goyal2017"`, `"optimizer.momentum=0.8"`.
        settings: by key; a list, tuple or range gives a run for each value: `batch=[256, 1024]`.

    Returns:
        A row for each run, with the columns of `sweeper plan --json`.

    Raises:
        ValueError: if the command line would be refused, with its words.
    """
    return _read_plan(_type_words(words, settings))[0]


def run(*words: str, **settings: Any) -> pd.DataFrame:
    """Train every run of a grid that has no result yet, as `sweeper -m`; show the progress.

    Ctrl-C, or a notebook's stop button, saves checkpoints; the same call resumes.

    Args:
        words: as on the command line.
        settings: by key; a list, tuple or range gives a run for each value.

    Returns:
        The rows of these runs in `results/runs`, whatever their outcomes, in the plan's order.

    Raises:
        ValueError: if the command line would be refused, with its words.
    """
    typed = _type_words(words, settings)
    planned, results = _read_plan([*typed, "--no-memory"])
    with closing(_sweep(typed)) as parts:
        for text in parts:
            print(text, end="", flush=True)  # noqa: T201  a call, not a command
    return planned[["run_id"]].merge(pd.read_parquet(Path(results, "runs")), on="run_id")


def status(results: str | Path = "results") -> dict[str, Any]:
    """What `sweeper status --json` prints of a results folder: counts, runs and failures."""
    from sweeper.commands.status import overview
    from sweeper.store.ledger import Ledger

    return overview(Ledger(Path(results)))


def _type_words(words: Iterable[str], settings: Mapping[str, Any]) -> list[str]:
    """The words of a command line; ValueError for a key without values."""
    typed = [*words]
    for key, given in settings.items():
        value = given.tolist() if hasattr(given, "tolist") else given  # of NumPy and pandas
        is_grid = isinstance(value, list | tuple | range) and key not in {"together", "lengths"}
        values = value if is_grid else [value]
        if not values:
            msg = f"{key} must have a value; got an empty list. Give one, or [[]] for a list."
            raise ValueError(msg)
        group = f"{key}._target_" if callable(values[0]) and key in _OWN_CLASSES else key
        typed.append(f"{group}={','.join(map(_type, values))}")
    return typed


def _type(value: Any) -> str:
    """A value in Hydra's grammar; a text is taken as it would be typed, a class by its path.

    ValueError for a class or a function that other processes cannot import.
    """
    if callable(value):
        place, name = value.__module__, value.__qualname__
        if place == "__main__" or "<" in name:
            msg = (
                "A class or function must be in a module that other processes can import; got "
                f"{name} of {place}. Put it into a file, such as mynet.py beside the notebook, and "
                "import it from there."
            )
            raise ValueError(msg)
        return f"{place}.{name}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_type(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple | range):
        return "[" + ",".join(map(_type, value)) + "]"
    if isinstance(value, Path):
        return QuotedString(str(value), Quote.single).with_quotes()
    return "null" if value is None else str(value)


def _read_plan(words: Iterable[str]) -> tuple[pd.DataFrame, str]:
    """A row for each run, and the results folder; print what the plan warns of."""
    command = [sys.executable, "-m", "sweeper", "plan", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    print(done.stderr, end="")  # noqa: T201  as above
    read = json.loads(done.stdout)
    return pd.DataFrame(read["runs"]), read["results"]


def _sweep(words: Iterable[str]) -> Generator[str]:
    """Run a sweep; yield what it has printed since, every second."""
    command = [sys.executable, "-m", "sweeper", "-m", *words]
    plain = {"FORCE_COLOR": "", "TTY_COMPATIBLE": "0"}  # a file, though a notebook has colours
    with NamedTemporaryFile("w+") as said, Path(said.name).open() as printed:
        process = subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **plain},
        )
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_EVERY_S)
                yield printed.read()
        except BaseException:  # Ctrl-C, here or as the lines are shown
            process.send_signal(signal.SIGINT)
            process.wait()
            print(printed.read(), end="", flush=True)  # noqa: T201  as above
            raise
        if process.returncode == BAD_INPUT:
            raise ValueError(Path(said.name).read_text().strip())
    if process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
