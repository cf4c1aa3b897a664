"""What `python -m analysis` understands, and what it prints."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.load import Loaded, read_curves, read_runs
from analysis.studies import COLUMNS


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: of the command line.

    Returns:
        The exit code: 0, or 2 if the command could not be followed.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except ValueError as error:
        say(f"Error: {error}")
        return 2


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    commands = parser.add_subparsers(required=True)
    figures = commands.add_parser("figures", help="draw accuracy against batch, warmup and epoch")
    _add_results(figures)
    figures.add_argument("--out", type=Path, default=Path("figures"), help="folder for the files")
    figures.set_defaults(command=_figures)
    return parser


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="*", default=["results"], help="results folders (default: results)"
    )


def _figures(options: argparse.Namespace) -> int:
    from analysis.figures import draw_all

    runs = _loaded(read_runs(options.results, COLUMNS))
    if not len(runs):
        say(f"No runs in {', '.join(options.results)}: nothing to draw. Run a sweep first.")
        return 2
    curves = _loaded(read_curves(options.results, runs, ["val_accuracy"]))
    for path in draw_all(runs, curves, options.out):
        say(f"wrote {path}")
    return 0


def _loaded(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        say(f"left out {unread}")
    return loaded.frame
