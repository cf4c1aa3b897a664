"""What `python -m analysis frontier` does with its options."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isfinite

import pandas as pd

from analysis.figures.sheet import save
from analysis.figures.target import best_reached
from analysis.frontier.answer import batch_table, describe_setup, describe_tradeoff
from analysis.frontier.figure import draw_frontier
from analysis.frontier.machines import measured_speeds, parse_speeds, read_cluster
from analysis.frontier.tradeoff import Work, find_tradeoff, steps_to_target
from analysis.stats.batch_limits import to_target
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.metric import Measured, check_target
from sweeper.spec.sentences import several


def frontier(options: argparse.Namespace, read: Callable[[], Measured]) -> Iterator[str]:
    """The lines of the answer; figures are drawn on the way.

    Args:
        options: of the command line, with `out` and `width`.
        read: reads the runs; called if the steps are not given.

    Raises:
        ValueError: for options that cannot be followed.
    """
    cluster = read_cluster(options.cluster, options.config_dir)
    if options.price is not None:
        cluster = replace(cluster, price=options.price)
    if options.steps is None:
        reached, runs, about = _read_steps(options, read)
    else:
        reached, runs, about = parse_steps(options.steps), pd.DataFrame(), "steps as given"
    work = _describe_work(options, runs)
    steps = steps_to_target(reached)
    found = find_tradeoff(steps, work, cluster, options.devices)
    setup = describe_setup(work, cluster)
    yield f"{about[0].upper()}{about[1:]}."
    yield from setup
    yield from steps.notes
    if lost := sorted({*steps.means} - {*found.best["global_batch"]}):
        named = ", ".join(f"{batch:,}" for batch in lost)
        yield f"Left out, as not divisible into micro-batches of known speed: batch {named}."
    yield batch_table(found.best, cluster).to_string(index=False)
    yield from describe_tradeoff(found, cluster)
    drawing = draw_frontier(found, f"{about}; {setup[0]}", width=options.width)
    for path in save(drawing, options.out, f"frontier-{cluster.name}"):
        yield f"wrote {path}"


def parse_steps(text: str) -> pd.DataFrame:
    """Steps such as `3200:14014,20480:3128`, as a frame like that of `to_target`.

    Raises:
        ValueError: for anything else.
    """
    try:
        pairs = [(int(b), float(s)) for b, s in (part.split(":") for part in text.split(","))]
        if not all(b > 0 and s > 0 and isfinite(s) for b, s in pairs):
            raise ValueError(text)
    except ValueError as error:
        msg = f"--steps must be BATCH:STEPS,...; got --steps {text}."
        raise ValueError(msg) from error
    frame = pd.DataFrame(pairs, columns=["global_batch", "steps_to_target"])
    examples = frame["global_batch"] * frame["steps_to_target"]
    return frame.assign(seed=0, examples_to_target=examples, reached_target=True)


def _read_steps(
    options: argparse.Namespace, read: Callable[[], Measured]
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Steps of the largest set of comparable runs, those runs, and a description."""
    if options.target is None:
        msg = (
            "--target must be given: the metric level that counts as trained; got none. Write, for "
            "example, --target 0.9."
        )
        raise ValueError(msg)
    measured = read()
    metric = measured.metric
    check_target(options.target, metric.unit)
    largest, *others = group_comparable(measured.runs_with_metric)
    reached = best_reached(to_target(largest.runs, measured.curves, options.target, metric))
    about = f"{largest.title}, to {metric.word} {metric.shown(options.target)}"
    if others:
        about += f"; without {several(len(others), 'smaller set')} of other runs"
    return reached, largest.runs, about


def _describe_work(options: argparse.Namespace, runs: pd.DataFrame) -> Work:
    """What is trained, from the options, else from the runs; without runs, with defaults.

    Raises:
        ValueError: for what neither says.
    """
    parameters = options.parameters
    if parameters is None:
        known = [] if runs.empty else runs["num_parameters"].dropna().tolist()
        if not known:
            msg = "--parameters must be given, the number in the model: no run tells it; got none."
            raise ValueError(msg)
        parameters = int(known[0])
    is_double = not runs.empty and runs["precision"].iloc[0] == "64-true"
    num_bytes = options.gradient_bytes or (8 if is_double else 4)
    measured, share = (None, 0.0) if runs.empty else measured_speeds(runs)
    if options.evaluation_share is not None:
        share = options.evaluation_share
        if not 0 <= share < 1:
            msg = f"--evaluation-share must be from 0 to below 1; got --evaluation-share {share:g}."
            raise ValueError(msg)
    given = options.examples_per_s
    speeds = measured if given is None else parse_speeds(given)
    if speeds is None:
        msg = (
            "the speed of a device must be known: from runs that finished in one attempt; got "
            "none. Give --examples-per-s, such as 16:290,128:367 by micro-batch."
        )
        raise ValueError(msg)
    num_bytes = float(parameters) * num_bytes
    return Work(
        num_bytes=num_bytes, evaluation_share=share, speeds=speeds, algorithm=options.exchange
    )
