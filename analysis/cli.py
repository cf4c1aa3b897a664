"""What `python -m analysis` understands, and what it prints."""

import argparse
import contextlib
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.tables.comparable_runs import COLUMNS
from analysis.tables.load import Loaded, read_curves, read_runs

#: Columns that place runs in a paper's grid and beside its published points.
_PAPER_COLUMNS = ("num_train_examples", "optimizer", "base_lr", "base_batch", "bn_span")
_PAPERS = ("mccord2021", "goyal2017", "limit2020")


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
    paper = commands.add_parser("paper", help="redraw a paper's figures")
    paper.add_argument("name", choices=_PAPERS)
    _add_results(paper)
    paper.add_argument("--out", type=Path, default=Path("figures"), help="folder for the files")
    paper.set_defaults(command=_paper)
    claims = commands.add_parser("claims", help="judge papers' claims on the runs")
    _add_results(claims)
    claims.add_argument("--paper", choices=_PAPERS, help="one paper; else all that the runs touch")
    claims.add_argument("--out", type=Path, help="write the table there as CSV")
    claims.set_defaults(command=_claims)
    _add_report_commands(commands)
    return parser


def _add_report_commands(commands: Any) -> None:
    estimates = commands.add_parser("estimates", help="answer the open questions with intervals")
    _add_results(estimates)
    estimates.add_argument("--target", type=float, help="accuracy that counts as trained, 0 to 1")
    estimates.set_defaults(command=_estimates)
    tuning = commands.add_parser("tuning", help="what tuned studies found, and their figures")
    tuning.add_argument("results", nargs="?", default="results", help="folder of the studies")
    tuning.add_argument("--storage", help="of the studies, if not the journal in the folder")
    tuning.add_argument("--target", type=float, help="accuracy or loss that counts as trained")
    tuning.add_argument("--out", type=Path, default=Path("figures"), help="folder for the files")
    tuning.set_defaults(command=_tuning)
    report = commands.add_parser("report", help="one interactive page that opens offline")
    _add_results(report)
    report.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the page")
    report.set_defaults(command=_report)
    watch = commands.add_parser("watch", help="serve the page while a sweep runs")
    _add_results(watch)
    watch.add_argument("--host", default="127.0.0.1", help="address to listen on")
    watch.add_argument("--port", type=int, default=8765, help="port to listen on")
    watch.set_defaults(command=_watch)


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
    curves = _loaded(read_curves(options.results, runs, ["val_accuracy", "val_loss"]))
    for path in draw_all(runs, curves, options.out):
        say(f"wrote {path}")
    return 0


def _paper(options: argparse.Namespace) -> int:
    from analysis.papers import draw_paper

    runs = _loaded(read_runs(options.results, [*COLUMNS, *_PAPER_COLUMNS]))
    if not len(runs):
        say(f"No runs in {', '.join(options.results)}: nothing to draw. Run a sweep first.")
        return 2
    curves = _loaded(read_curves(options.results, runs, ["val_accuracy", "val_loss"]))
    for line in draw_paper(options.name, runs, curves, options.out, options.results[0]):
        say(line)
    return 0


def _claims(options: argparse.Namespace) -> int:
    from analysis.papers.claims import in_words, judge_all, judge_paper, preflight, table

    runs = _loaded(read_runs(options.results))
    if not len(runs):
        say(f"No runs in {', '.join(options.results)}: nothing to judge. Run a sweep first.")
        return 2
    curves = _loaded(read_curves(options.results, runs, ["step", "lr", "distance_from_start"]))
    asked = [judge_paper(options.paper, runs, curves)] if options.paper else None
    judged = asked or judge_all(runs, curves)
    for paper in judged:
        say(paper.heading)
        for finding in preflight(paper.study.runs):
            say(f"  {'refusal' if finding.is_refusal else 'remark'}: {finding.text}")
        for verdict in paper.verdicts:
            say(f"{verdict.verdict:>14}  {in_words(verdict)}")
    if options.out:
        table(judged).to_csv(options.out, index=False)
        say(f"wrote {options.out}")
    return 0


def _estimates(options: argparse.Namespace) -> int:
    from analysis.estimates import answers

    runs = _loaded(read_runs(options.results))
    if not len(runs):
        say(f"No runs in {', '.join(options.results)}: nothing to estimate. Run a sweep first.")
        return 2
    curves = _loaded(read_curves(options.results, runs))
    for answer in answers(runs, curves, options.target):
        say(f"{answer.question}\n  {answer.words}")
        if len(answer.table):
            say(textwrap.indent(answer.table.to_string(index=False), "  "))
    return 0


def _tuning(options: argparse.Namespace) -> int:
    from analysis.tuning.figures import draw_tuned
    from analysis.tuning.load import load_tuned
    from analysis.tuning.report import in_words

    largest, *others = load_tuned(options.results, options.storage)
    if others:
        say(f"{len(others)} smaller sets of studies, of other spaces, are left out.")
    columns = ["step", "val_loss" if "loss" in largest.objective else "val_accuracy"]
    curves = _loaded(read_curves(options.results, _loaded(read_runs(options.results, [])), columns))
    for paragraph in in_words(largest, curves, options.target):
        say(paragraph)
    for path in draw_tuned(largest, curves, options.out, options.target):
        say(f"wrote {path}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis.report import page, report_data

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


def _loaded(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        say(f"left out {unread}")
    return loaded.frame
