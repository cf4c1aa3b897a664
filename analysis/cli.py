"""The command line of `python -m analysis`."""

import argparse
import contextlib
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from analysis.tables.comparable_runs import COLUMNS
from analysis.tables.load import Loaded, read_curves, read_runs
from sweeper.console.text import say

#: Columns that place runs in a paper's grid and beside its published points.
_PAPER_COLUMNS = (
    "num_train_examples", "optimizer", "base_lr", "base_batch", "bn_span", "twin_of",
)  # fmt: skip
_PAPERS = ("mccord2021", "goyal2017", "limit2020")


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        The exit code: 0, or 2 if the command could not be followed.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except ValueError as error:
        say(f"Error: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    commands = parser.add_subparsers(required=True)
    results = argparse.ArgumentParser(add_help=False)
    results.add_argument(
        "results", nargs="*", default=["results"], help="results folders (default: results)"
    )
    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--out", type=Path, default=Path("figures"), help="output folder")

    def add(
        command: Callable[[argparse.Namespace], int], about: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        name = command.__name__.removeprefix("_")
        added = commands.add_parser(name, help=about, parents=[*parents])
        added.set_defaults(command=command)
        return added

    add(_figures, "draw accuracy against batch, warmup and epoch", results, out)
    paper = add(_paper, "redraw a paper's figures", out)
    paper.add_argument("name", choices=_PAPERS)
    paper.add_argument("results", nargs="*", default=["results"], help="results folders")
    claims = add(_claims, "test papers' claims on the runs", results)
    claims.add_argument("--paper", choices=_PAPERS, help="one paper; default: all that have runs")
    claims.add_argument("--out", type=Path, help="write the table to this CSV file")
    estimates = add(_estimates, "best warmup and rate, critical batch and more", results)
    estimates.add_argument("--target", type=float, help="accuracy that counts as trained, 0 to 1")
    tuning = add(_tuning, "results of tuning studies, with figures", out)
    tuning.add_argument(
        "results", nargs="?", default="results", help="results folder of the studies"
    )
    tuning.add_argument(
        "--storage", help="storage of the studies, if not the journal in that folder"
    )
    tuning.add_argument("--target", type=float, help="accuracy or loss that counts as trained")
    report = add(_report, "one interactive page that works offline", results)
    report.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the page")
    watch = add(_watch, "serve the page while a sweep runs", results)
    watch.add_argument("--host", default="127.0.0.1", help="address to listen on")
    watch.add_argument("--port", type=int, default=8765, help="port to listen on")
    return parser


def _figures(options: argparse.Namespace) -> int:
    from analysis.figures.draw import draw_all

    runs = _read_runs(options, COLUMNS)
    curves = _read_curves(options, runs, ["val_accuracy", "val_loss"])
    for path in draw_all(runs, curves, options.out):
        say(f"wrote {path}")
    return 0


def _paper(options: argparse.Namespace) -> int:
    from analysis.papers.draw import draw_paper

    runs = _read_runs(options, [*COLUMNS, *_PAPER_COLUMNS])
    curves = _read_curves(options, runs, ["val_accuracy", "val_loss"])
    for line in draw_paper(options.name, runs, curves, options.out, options.results[0]):
        say(line)
    return 0


def _claims(options: argparse.Namespace) -> int:
    from analysis.papers.judge import in_words, judge_all, judge_paper, table
    from analysis.papers.validity import check_validity

    runs = _read_runs(options)
    curves = _read_curves(options, runs, ["step", "lr", "distance_from_start"])
    name = options.paper
    judged = [judge_paper(name, runs, curves)] if name else judge_all(runs, curves)
    for paper in judged:
        say(paper.heading)
        for finding in check_validity(paper.compared.runs):
            say(f"  {finding}")
        for verdict in paper.verdicts:
            say(f"{verdict.verdict:>14}  {in_words(verdict)}")
    if options.out:
        table(judged).to_csv(options.out, index=False)
        say(f"wrote {options.out}")
    return 0


def _estimates(options: argparse.Namespace) -> int:
    from analysis.report.estimates import estimate_all

    runs = _read_runs(options)
    for found in estimate_all(runs, _read_curves(options, runs), options.target):
        say(f"{found.question}\n  {found.words}")
        if len(found.table):
            say(textwrap.indent(found.table.to_string(index=False), "  "))
    return 0


def _tuning(options: argparse.Namespace) -> int:
    from analysis.tuning.figures import draw_tuned
    from analysis.tuning.load import load_tuned
    from analysis.tuning.report import in_words

    largest, *others = load_tuned(options.results, options.storage)
    if others:
        say(f"{len(others)} smaller sets of studies, with other search spaces, are skipped.")
    options.results = [options.results]
    curves = _read_curves(options, _read_runs(options, []), ["step", largest.column])
    for paragraph in in_words(largest, curves, options.target):
        say(paragraph)
    for path in draw_tuned(largest, curves, options.out, options.target):
        say(f"wrote {path}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis.report.data import report_data
    from analysis.report.page import page

    command = f"python -m analysis report {' '.join(options.results)} -o {options.out}"
    options.out.write_text(page(report_data(options.results, command)), encoding="utf-8")
    say(f"wrote {options.out}")
    return 0


def _watch(options: argparse.Namespace) -> int:
    from analysis.report.watch import Watcher, make_server

    command = f"python -m analysis watch {' '.join(options.results)}"
    server = make_server(Watcher(options.results, command), options.host, options.port)
    say(f"http://{options.host}:{server.server_address[1]}/ shows the runs; Ctrl-C ends")
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
    return 0


def _read_runs(options: argparse.Namespace, columns: Sequence[str] | None = None) -> pd.DataFrame:
    runs = _loaded(read_runs(options.results, columns))
    if not len(runs):
        msg = (
            f"results must hold runs; got {', '.join(options.results)}, which holds none. "
            "Run a sweep first, or name another folder."
        )
        raise ValueError(msg)
    return runs


def _read_curves(
    options: argparse.Namespace, runs: pd.DataFrame, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    return _loaded(read_curves(options.results, runs, columns))


def _loaded(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        say(f"skipped {unread}")
    return loaded.frame
