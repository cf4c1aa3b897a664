"""Reads what the options of a command of `python -m analysis` ask for; reports skipped files."""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.tables.load import Loaded, read_curves, read_runs
from analysis.tables.metric import AskedMetric, Measured, with_metric
from sweeper.console.printing import say


def read_asked_runs(
    options: argparse.Namespace, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """The runs of the results folders; ValueError if there are none."""
    runs = _loaded(read_runs(options.results, columns))
    if not len(runs):
        msg = (
            f"results must hold runs; got {', '.join(options.results)}, which holds none. "
            "Run a sweep first, or name the folder that holds runs/."
        )
        raise ValueError(msg)
    return runs


def with_asked_metric(
    options: argparse.Namespace, runs: pd.DataFrame, columns: Sequence[str] | None = None
) -> Measured:
    """Runs, curves with these columns, and the metric that is asked for."""
    curves = _loaded(read_curves(options.results, runs, columns))
    measured = with_metric(options.results, runs, curves, asked_metric(options))
    _loaded(Loaded(measured.runs, list(measured.unread)))
    return measured


def asked_metric(options: argparse.Namespace) -> AskedMetric:
    """What `--metric` and `--metric-mode` say."""
    return AskedMetric(options.metric, options.metric_mode)


def check_folders(arguments: Sequence[str]) -> None:
    """ValueError for a results folder that is named as on other command lines, with the right one.

    Sweeps take results=FOLDER, and `sweeper status` takes --results FOLDER for a run id.
    """
    for i, word in enumerate(arguments):
        name, has_value, value = word.partition("=")
        is_key = name == "--results" or (name == "results" and has_value)
        if not is_key or Path(word).is_dir():
            continue
        following = [] if has_value else [*arguments[i + 1 : i + 2]]
        folder = [value] if has_value else following
        rest = [*arguments[:i], *arguments[i + 1 + len(following) :]]
        msg = (
            f"results folders must be given without {name}{has_value}; got "
            f"{shlex.join([word, *following])}. "
            f"Write: {shlex.join(['python', '-m', 'analysis', *rest, *folder])}"
        )
        raise ValueError(msg)


def check_out(out: Path, *, is_file: bool) -> None:
    """ValueError if `out` cannot be written, before the results are computed.

    Args:
        out: a file in an existing folder, or a folder, which is made if it does not exist.
        is_file: which of the two.
    """
    if is_file:
        there, what = out if out.exists() else out.parent, "a file in a folder that is there"
    else:
        there = next(place for place in (out, *out.parents) if place.exists())
        what = "a folder, or the place of a new one"
    is_right = not out.is_dir() if is_file else there.is_dir()
    if not (is_right and there.exists() and os.access(there, os.W_OK)):
        msg = f"--out must be {what}, and writable; got {out}. Name another."
        raise ValueError(msg)


def _loaded(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        say(f"skipped {unread}")
    return loaded.frame
