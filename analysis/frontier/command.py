"""What `sweeper analysis frontier` does with its options, and its answer in words."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isfinite

import pandas as pd

from analysis.figures.sheet import save
from analysis.figures.target import best_reached
from analysis.frontier.figure import draw_frontier
from analysis.frontier.machines import Cluster, measured_speeds, parse_speeds, read_cluster
from analysis.frontier.tradeoff import Tradeoff, Work, find_tradeoff, steps_to_target
from analysis.stats.answer import capitalize
from analysis.stats.to_target import to_target
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.metric import Measured, check_target
from sweeper.console.runs import rate_text
from sweeper.spec.sentences import several


def frontier(options: argparse.Namespace, read: Callable[[], Measured]) -> Iterator[str]:
    """The lines of the answer; figures are drawn on the way.

    Runs are read if the steps are not given. ValueError for options that cannot be followed.
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
    yield f"{capitalize(about)}."
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

    ValueError for anything else.
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

    ValueError for what neither says.
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


def describe_setup(work: Work, cluster: Cluster) -> tuple[str, str]:
    """What was assumed of the cluster and of a device, a sentence each."""
    links = cluster.hardware
    return (
        f"Cluster {cluster.name}: nodes of {cluster.per_node}, {links.node_gb_per_s:g} GB/s "
        f"within, {links.network_gb_per_s:g} GB/s between; exchange by "
        f"{work.algorithm or 'the faster of ring and tree'}, {work.num_bytes / 1e6:.3g} MB of "
        f"gradients in buckets of {links.bucket_mib:g} MiB.",
        f"One device: {work.speeds}; evaluations and checkpoints take "
        f"{work.evaluation_share:.1%} of the time of training.",
    )


def batch_table(rows: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Rows of `time_points`, as text."""

    def interval(value: str, low: str, high: str, shown: Callable[[float], str]) -> list[str]:
        ends = zip(rows[value], rows[low], rows[high], strict=True)
        return [
            shown(v) if pd.isna(a) else f"{shown(v)} ({shown(a)} to {shown(b)})" for v, a, b in ends
        ]

    sizes = zip(rows["micro_batch"], rows["accumulation_steps"], strict=True)
    times = interval("time_s", "time_low_s", "time_high_s", _time)
    hours = interval("device_hours", "device_hours_low", "device_hours_high", rate_text)
    in_turn_s = rows["step_s"] - rows["exposed_s"] + rows["exchange_s"]
    shown = {
        "batch": rows["global_batch"].map("{:,}".format),
        "devices": rows["devices"].map("{:,}".format),
        "micro-batch": [f"{m:.0f}" + (f" x {a:.0f}" if a > 1 else "") for m, a in sizes],
        "time": times,
        "device-hours": hours,
    }
    if cluster.price:
        shown["cost"] = [f"{hours * cluster.price:.3g}" for hours in rows["device_hours"]]
    shown |= {
        "examples": rows["examples_ratio"].map("x {:.2f}".format),
        "machine": rows["machine_ratio"].map("x {:.2f}".format),
        "exchange": (1e3 * rows["exchange_s"]).map("{:.3g} ms".format),
        "if not hidden": (rows["exchange_s"] / in_turn_s).map("{:.1%}".format),
        "exposed": rows["exchange_share"].map("{:.1%}".format),
        "evaluation": rows["evaluation_share"].map("{:.1%}".format),
    }
    return pd.DataFrame(shown)


def describe_tradeoff(found: Tradeoff, cluster: Cluster) -> Iterator[str]:
    """Sentences on the knee and the next doubling."""
    knee, doubled = found.knee, found.doubled
    is_fastest = knee["time_s"] <= found.frontier["time_s"].min()
    beyond = "a percent of time costs more than a percent of device-hours"
    beyond = "Nothing is faster" if is_fastest else f"Beyond it {beyond}"
    yield f"The knee: {_place(knee)}, {_time(knee['time_s'])} for {_bill(knee, cluster)}. {beyond}."
    if doubled is None:
        yield "The next doubling of devices buys nothing: no number of devices is faster."
        return
    ratio = doubled["devices"] / knee["devices"]
    to = "The next doubling, to" if ratio == 2 else "The next doubling, as far as"
    to = to if ratio <= 2 else "The next doubling is no faster; the next faster point, with"
    bought = _percent(*(1 - share for share in found.time_share))
    paid = _percent(*(share - 1 for share in found.hours_share))
    yield (
        f"{to} {_place(doubled)}, buys {bought} of the time for {paid} more "
        f"of the cost: {_bill(doubled, cluster)}."
    )


def _place(row: pd.Series) -> str:
    devices = int(row["devices"])
    return f"{devices:,} device{'s' * (devices != 1)} at batch {int(row['global_batch']):,}"


def _bill(row: pd.Series, cluster: Cluster) -> str:
    hours = row["device_hours"]
    money = f", cost {hours * cluster.price:.3g}" if cluster.price else ""
    return f"{rate_text(hours)} device-hours{money}"


def _percent(value: float, *ends: float) -> str:
    low, high = sorted(ends)
    between = "" if pd.isna(low) or low == high else f" ({100 * low:.0f} to {100 * high:.0f})"
    return f"{100 * value:.0f} %{between}"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
