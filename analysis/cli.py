"""The command line of `sweeper analysis`."""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pandas as pd

from analysis.frontier.machines import find_presets
from analysis.tables.any_table import MEASURES, WORDS, AnyTable
from analysis.tables.comparable_runs import (
    COLUMNS,
    ComparableRuns,
    example_unit,
    file_name,
    group_comparable,
    select_runs_where,
)
from analysis.tables.load import Loaded, read_curves, read_runs
from analysis.tables.metric import AskedMetric, Measured, check_target, curve_columns, with_metric
from sweeper.console.printing import (
    HintingParser,
    describe_os_error,
    positive_number,
    say,
    whole_number,
)
from sweeper.planning.exchange import Algorithm
from sweeper.spec.sentences import did_you_mean, several
from sweeper.store.questions import read_questions
from sweeper.store.schema import RUNS

if TYPE_CHECKING:
    from analysis.stats.answer import Answer


def read_asked_runs(
    options: argparse.Namespace, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """The runs of the results folders; ValueError if there are none."""
    runs = _report_unread(read_runs(options.results, None if options.where else columns))
    if not len(runs):
        msg = (
            f"results must hold runs; got {', '.join(options.results)}, which holds none. "
            "Run a sweep first, or name the folder that holds runs/."
        )
        raise ValueError(msg)
    return select_runs_where(runs, options.where)


def read_measured(
    options: argparse.Namespace, *clocks: str, columns: Sequence[str] | None = None
) -> Measured:
    """Runs and curves with the metric that is asked for.

    Args:
        options: of the command line.
        clocks: columns that the curves have besides the metric; `all` for all of theirs.
        columns: of the runs; None for all.
    """
    runs = read_asked_runs(options, columns)
    asked = AskedMetric(options.metric, options.metric_mode)
    needed = None if clocks == ("all",) else curve_columns(runs, asked, *clocks)
    curves = _report_unread(read_curves(options.results, runs, needed))
    measured = with_metric(options.results, runs, curves, asked)
    _report_unread(Loaded(measured.runs, list(measured.unread)))
    return measured


def check_out(out: Path, *, is_file: bool) -> None:
    """ValueError if `out` cannot be written, before the results are computed.

    A file must be in an existing folder; a folder is made if it does not exist.
    """
    if is_file:
        there, what = out if out.exists() else out.parent, "a file in a folder that is there"
    else:
        there = next(place for place in (out, *out.parents) if place.exists())
        what = "a folder, or the place for a folder"
    is_right = not out.is_dir() if is_file else there.is_dir()
    if not (is_right and there.exists() and os.access(there, os.W_OK)):
        msg = f"--out must be {what}, and writable; got {out}. Name another."
        raise ValueError(msg)


def _report_unread(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        say(f"skipped {unread}")
    return loaded.frame


_WROTE = "wrote {}"
_MOST_FIGURES = 6
_PAPERS = ("mccord2021", "goyal2017", "limit2020")


def main(arguments: Sequence[str]) -> int:
    """Run a command.

    Returns:
        The exit code: 0, or 2 if the command could not be followed.
    """
    try:
        parser, commands = _parser()
        words = _name_command(arguments, [*commands])
        options, unknown = parser.parse_known_args(words)
        if unknown:
            commands[words[0]].error(f"unrecognized arguments: {' '.join(unknown)}")
        if out := getattr(options, "out", None):
            check_out(out, is_file=options.command in (_claims, _report))
        found = options.command(options)
        if getattr(options, "json", False) and options.command is not _next:
            from analysis.stats.answer import answers_json

            found = [answers_json([answer for answer in found if not isinstance(answer, str)])]
        for part in found:
            say(part if isinstance(part, str) else part.text())
    except (ValueError, OSError) as error:
        say(f"Error: {describe_os_error(error) if isinstance(error, OSError) else error}")
        return 2
    return 0


def _name_command(arguments: Sequence[str], commands: Sequence[str]) -> Sequence[str]:
    """The words of a command; without one they are about which batch to train with.

    Of a file they are about the table that it is. ValueError for another first word that is neither
    a command nor a folder.
    """
    first = arguments[0] if arguments else "--where"
    if first in (*commands, "-h", "--help"):
        return arguments
    is_table = Path(first).is_file() or Path(first).suffix in (".csv", ".parquet")
    if first == "--beside" or is_table:
        return ["read", *arguments]
    if not first.startswith("-") and not Path(first).is_dir():
        msg = (
            f"the first word must be a results folder, a table or a command; got {first}. "
            f"{did_you_mean(first, commands) or 'See sweeper analysis --help.'}"
        )
        raise ValueError(msg)
    return ["batch", *arguments]


#: Follows its options; yields what it has to say: answers, and other lines.
Command = Callable[[argparse.Namespace], "Iterator[Answer | str]"]


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands."""
    parser = HintingParser(prog="sweeper analysis", description=__doc__)
    commands = parser.add_subparsers(required=True)
    results, metric, out, as_json = _shared_options()

    def add(command: Command, about: str, *parents: HintingParser) -> argparse.ArgumentParser:
        name = command.__name__.removeprefix("_")
        added = commands.add_parser(name, help=about, description=about, parents=[*parents])
        added.set_defaults(command=command, where=[])
        if command is not _read:  # of tables, not of results folders
            added.add_argument(
                "--where", action="append", metavar="KEY=VALUE",
                help="only these runs: a column, a word of the command line or a setting",
            )  # fmt: skip
        return added

    add(
        _batch, "which batch to train with; what a folder without a command prints", results,
        metric, as_json,
    )  # fmt: skip
    figures = add(_figures, "draw the metric against batch, warmup and epoch", results, metric, out)
    figures.add_argument("--target", type=float, help="metric level that counts as trained")
    figures.add_argument(
        "--all", action="store_true", help=f"all figures, not the {_MOST_FIGURES} most telling"
    )
    paper = add(_paper, "redraw a paper's figures", metric, out)
    paper.add_argument("name", choices=_PAPERS)
    paper.add_argument(
        "results", nargs="*", default=["results"], help="results folders (default: results)"
    )
    claims = add(_claims, "test papers' claims on the runs", results, metric, as_json)
    claims.add_argument("--paper", choices=_PAPERS, help="one paper; default: all that have runs")
    claims.add_argument("--out", type=Path, help="write the table to this CSV file")
    estimates = add(
        _estimates, "best warmup and rate, critical batch and more", results, metric, as_json
    )
    estimates.add_argument(
        "--target", type=float, help="metric level that counts as trained; an accuracy from 0 to 1"
    )
    read = add(
        _read, "a table of anyone's runs: what its columns can answer; what a file without a "
        "command prints", out, as_json,
    )  # fmt: skip
    read.add_argument(
        "tables", nargs="*", type=Path, metavar="TABLE", help="CSV or parquet with a row per run"
    )
    read.add_argument(
        "--beside", nargs="+", type=Path, default=[], metavar="TABLE",
        help="tables whose best batches are drawn beside those of public tables, in tokens",
    )  # fmt: skip
    read.add_argument(
        "--columns", default="", metavar="'WORD=COLUMN ...'",
        help="what its columns are, or a file that says so: batch=bs lr=lr loss=\"smooth loss\" "
        f"size=N data=D; the words are {', '.join(WORDS)}, others; default: columns of these names",
    )  # fmt: skip
    read.add_argument(
        "--units", default="", metavar="'WORD=UNIT ...'",
        help="what a number of a column stands for: batch=2048tokens data=1e9tokens",
    )  # fmt: skip
    read.add_argument(
        "--against", type=Path, metavar="TABLE",
        help="a table of a reference, of what reached a target: are these runs suspiciously fast "
        "for their batch?",
    )  # fmt: skip
    branches = add(
        _branches, "the critical batch over training, from branches", results, metric, out, as_json
    )
    branches.add_argument(
        "--margin", type=float,
        help="what counts as not worse than the parent, in the unit of the metric; default: "
        "0.005 of an accuracy, 1 %% of the parents' mean of any other metric",
    )  # fmt: skip
    table = add(
        _table, "the metric at every point, for a paper: LaTeX, Markdown, CSV", results, metric
    )
    table.add_argument("--out", type=Path, default=Path("tables"), help="output folder (tables)")
    add(
        _next, "the runs that would decide what is open, most useful first", results, metric,
        as_json,
    )  # fmt: skip
    tuning = add(_tuning, "tuned studies; with --target their critical batch", out, as_json)
    tuning.add_argument(
        "results", nargs="?", default="results", help="results folder of the studies (results)"
    )
    tuning.add_argument("--target", type=float, help="objective level that counts as trained")
    frontier = add(_frontier, "time against device-hours on a cluster", results, metric, out)
    _add_frontier_options(frontier)
    report = add(_report, "one interactive page that works offline", results, metric)
    report.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), help="the page (report.html)"
    )
    return parser, commands.choices


def _add_frontier_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "For example: sweeper analysis frontier results --cluster summit --target 0.9; "
        "docs/frontier.md explains the answer."
    )
    parser.add_argument(
        "--cluster", metavar="NAME",
        help="the machines to compare batches on, which need not be there: a file of conf/cluster "
        f"that describes their nodes and links ({', '.join(find_presets())}), or of your own",
    )  # fmt: skip
    parser.add_argument(
        "--config-dir", type=Path, action="append", default=[], metavar="DIR",
        help="a folder whose folder cluster holds your own descriptions",
    )  # fmt: skip
    parser.add_argument(
        "--target", type=float, help="metric level that counts as trained; an accuracy from 0 to 1"
    )
    parser.add_argument(
        "--devices",
        type=whole_number(1, 2**31),
        help="number of devices; default: the fastest for each batch",
    )
    parser.add_argument(
        "--examples-per-s",
        help="of a device: 367, or by micro-batch 16:290,128:367; default: as in the runs",
    )
    parser.add_argument(
        "--steps",
        help="steps to the target by batch, such as 3200:14014,20480:3128, in place of runs",
    )
    parser.add_argument(
        "--parameters",
        type=whole_number(1, 2**63 - 1),
        help="number in the model, if no runs are read",
    )
    parser.add_argument(
        "--gradient-bytes", type=whole_number(1, 8),
        help="exchanged per parameter; default: from the runs' precision, 4 with --steps",
    )  # fmt: skip
    parser.add_argument(
        "--evaluation-share", type=float,
        help="as a fraction of training time; default: as in the runs, 0 with --steps",
    )  # fmt: skip
    parser.add_argument(
        "--exchange", choices=get_args(Algorithm), help="default: the faster of ring and tree"
    )
    parser.add_argument(
        "--price", type=positive_number, help="of a device-hour; default: the preset's"
    )


def _shared_options() -> tuple[HintingParser, ...]:
    """What several commands take: results folders, a metric, where figures go."""
    results = HintingParser(add_help=False)
    results.add_argument(
        "results", nargs="*", default=["results"], help="results folders (default: results)"
    )
    metric = HintingParser(add_help=False)
    metric.add_argument("--metric", help="metric to compare by; default: that of the runs")
    metric.add_argument(
        "--metric-mode", choices=("max", "min"), help="which is better, if the runs do not say"
    )
    out = HintingParser(add_help=False)
    out.add_argument("--out", type=Path, default=Path("figures"), help="output folder (figures)")
    out.add_argument(
        "--width", choices=("screen", "column", "text"), default="screen",
        help="for a screen (default), or the column (3.35 in) or text (6.9 in) of a paper: the "
        "caption is then in the text file only",
    )  # fmt: skip
    as_json = HintingParser(add_help=False)
    as_json.add_argument(
        "--json", action="store_true",
        help="print a list of answers for programs; of a folder without a command, all of them",
    )  # fmt: skip
    return results, metric, out, as_json


def _batch(options: argparse.Namespace) -> "Iterator[Answer]":
    from analysis.report.any_runs import judge_lengths
    from analysis.report.estimates import choose_batch, estimate_all

    if options.json:
        measured = read_measured(options, "all")
        yield from (*estimate_all(measured), *judge_lengths(measured))
    else:
        yield choose_batch(read_measured(options))


def _figures(options: argparse.Namespace) -> Iterator[str]:
    from analysis.figures.draw import draw_all
    from analysis.tables.validity import COLUMNS as OF_DOUBTS

    columns = [*{*COLUMNS, "peak_lr", "steps", *OF_DOUBTS}]
    needed = ("step", "examples_seen", "noise_scale")
    measured = read_measured(options, *needed, columns=columns)
    check_target(options.target, measured.metric.unit)
    most = None if options.all else _MOST_FIGURES
    for part in draw_all(measured, options.out, options.width, options.target, most):
        yield part if isinstance(part, str) else _WROTE.format(part)


def _paper(options: argparse.Namespace) -> Iterator[str]:
    from analysis.papers.paper_figures import draw_paper

    measured = read_measured(options)
    drawn = draw_paper(options.name, measured, options.out, options.width)
    yield from map(_WROTE.format, drawn)


def _claims(options: argparse.Namespace) -> "Iterator[Answer | str]":
    from analysis.papers.judge import (
        claim_answers,
        judge_all,
        judge_paper,
        verdict_lines,
        verdict_table,
    )
    from analysis.tables.validity import check_validity

    measured = read_measured(options, "step", "lr", "distance_from_start")
    runs, curves, name = measured.runs, measured.curves, options.paper
    judged = [judge_paper(name, runs, curves)] if name else judge_all(runs, curves)
    if not judged:
        yield "No claim of a paper is about points that were run; --paper NAME says what it lacks."
    for paper in judged:
        yield paper.heading
        for finding in check_validity(paper.compared.runs, measured.metric):
            yield f"  {finding}"
        for verdict, words in verdict_lines(paper):
            yield f"{verdict:>14}  {words}"
        yield from claim_answers(paper) if options.json else ()
    if options.out:
        verdict_table(judged).to_csv(options.out, index=False)
        yield _WROTE.format(options.out)


def _estimates(options: argparse.Namespace) -> "Iterator[Answer | str]":
    from analysis.report.any_runs import judge_lengths
    from analysis.report.estimates import estimate_all

    measured = read_measured(options, "all")
    check_target(options.target, measured.metric.unit)
    first, *others = estimate_all(measured, options.target)
    yield first
    for asked in chain.from_iterable(map(read_questions, map(Path, options.results))):
        yield f"question={asked.text!r}, seed by seed\n  {asked.said}"
    yield from (*others, *judge_lengths(measured))


def _next(options: argparse.Namespace) -> Iterator[str]:
    from analysis.decide.proposal import as_json, proposals_text
    from analysis.decide.proposals import propose_next
    from analysis.papers.judge import judge_all
    from analysis.report.estimates import choose_batch

    measured = read_measured(options, "all")
    judged = judge_all(measured.runs, measured.curves)
    found = propose_next(measured, judged, choose_batch(measured))
    yield from [json.dumps(as_json(found), indent=1)] if options.json else proposals_text(found)


def _read(options: argparse.Namespace) -> "Iterator[Answer | str]":
    from analysis.figures.atlas import draw_beside
    from analysis.figures.sheet import save
    from analysis.report.any_runs import describe_table, find_own_bests
    from analysis.report.scaling import judge_speed
    from analysis.tables.any_table import read_table

    def read(path: Path) -> AnyTable:
        return read_table(path, options.columns, options.units)

    if not (options.tables or options.beside):
        msg = "a table must be named, as in sweeper analysis table.csv."
        raise ValueError(msg)
    reference = read(options.against) if options.against else None
    for table in map(read, [*options.tables, *options.beside]):
        yield from describe_table(table)
        if reference and (table.measure == MEASURES[2]) != (reference.measure == MEASURES[2]):
            msg = f"{table.name} must have {reference.measure}, as --against has. Convert it."
            raise ValueError(msg)
        if reference:
            yield judge_speed(table.reached, reference.reached)
    for table in map(read, options.beside):
        drawing = draw_beside(find_own_bests(table), Path(table.name).name, options.width)
        yield from map(_WROTE.format, save(drawing, options.out, "best_batch_beside"))


def _branches(options: argparse.Namespace) -> "Iterator[Answer | str]":
    from analysis.figures.over_training import draw_branches, draw_over_training
    from analysis.figures.sheet import save
    from analysis.stats.critical_branches import (
        branch_answers,
        branch_differences,
        critical_branches,
        describe_ratio,
        name_length,
    )
    from analysis.tables.which_runs import BREAKING, negligible_margin

    measured = read_measured(options, "all")
    runs, metric = measured.runs[measured.runs["branch"].notna()], measured.metric
    groups = group_comparable(runs, ("batch", "seed", "branch")) if len(runs) else []
    for group in groups or [ComparableRuns(runs, "", "", "")]:
        differences = branch_differences(group.runs, measured.curves, metric.name)
        margin, words = options.margin, f"{options.margin}"
        if margin is None:
            values = differences["of_parent"]
            margin, words = negligible_margin(metric, BREAKING, values, values)
        found = critical_branches(differences, metric.sign, margin)
        yield f"{group.title}: {metric.label} {name_length(differences)}"
        yield from branch_answers(found, margin, words)
        yield found.to_string(index=False, na_rep="", float_format="{:,.5g}".format)
        yield describe_ratio(found)
        unit, ending = example_unit(group.runs), f"-{group.name}" if group.name else ""
        drawing = draw_over_training(found, group.title, margin, unit, options.width)
        drawn = save(drawing, options.out, f"critical_batch_over_training{ending}")
        drawing = draw_branches(differences, group.title, metric, unit, options.width)
        drawn += save(drawing, options.out, f"{file_name(metric.word)}_after_branches{ending}")
        yield from map(_WROTE.format, drawn)


def _table(options: argparse.Namespace) -> Iterator[str]:
    from analysis.report.table import write_tables

    measured = read_measured(options)
    if others := len(measured.runs) - len(measured.runs_with_metric):
        yield f"left out: {several(others, 'run')} with another metric than {measured.metric.name}"
    for i, (table, paths) in enumerate(write_tables(measured, options.out)):
        yield (replace(table, settings="") if i else table).markdown()  # what differs is captioned
        yield from map(_WROTE.format, paths)


def _tuning(options: argparse.Namespace) -> "Iterator[Answer | str]":
    from analysis.tuning.figures import draw_tuned
    from analysis.tuning.report import answer_studies, describe_studies
    from analysis.tuning.studies import keep_trials, load_tuned

    largest, *others = load_tuned(options.results)
    if others:
        yield f"Skipped: {several(len(others), 'smaller set')} of studies with other search spaces."
    curves = pd.DataFrame()
    check_target(options.target, "")
    options.results = [options.results]
    if options.where:
        largest = keep_trials(largest, read_asked_runs(options)["run_id"])
    if options.target is not None:
        options.metric, options.metric_mode = largest.metric.name, largest.metric.mode
        columns = ["metric_name", "config_json", *(n for n in [largest.metric.name] if n in RUNS)]
        curves = read_measured(options, "step", "examples_seen", columns=columns).curves
    say_studies = answer_studies if options.json else describe_studies
    yield from say_studies(largest, curves, options.target)
    drawn = draw_tuned(largest, curves, options.out, options.target, options.width)
    yield from map(_WROTE.format, drawn)


def _frontier(options: argparse.Namespace) -> Iterator[str]:
    from analysis.frontier.command import frontier

    return frontier(options, lambda: read_measured(options, "step", "examples_seen"))


def _report(options: argparse.Namespace) -> Iterator[str]:
    from analysis.report.page import page, report_data

    where = "".join(f" --where {condition}" for condition in options.where)
    command = f"sweeper analysis report {' '.join(options.results)} -o {options.out}{where}"
    asked = AskedMetric(options.metric, options.metric_mode)
    data = report_data(options.results, command, asked, options.where)
    yield from map("skipped {}".format, data["unread"])
    if not data["runs"]:
        yield f"no runs in {', '.join(options.results)}: the page is empty"
    options.out.write_text(page(data), encoding="utf-8")
    yield _WROTE.format(options.out)
