"""The answer as text: a table of the batches, the knee, the next doubling."""

from collections.abc import Callable, Iterator

import pandas as pd

from analysis.frontier.machines import Cluster
from analysis.frontier.tradeoff import Tradeoff, Work


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
    hours = interval("device_hours", "device_hours_low", "device_hours_high", _number)
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
    return f"{_number(hours)} device-hours{money}"


def _percent(value: float, *ends: float) -> str:
    low, high = sorted(ends)
    between = "" if pd.isna(low) or low == high else f" ({100 * low:.0f} to {100 * high:.0f})"
    return f"{100 * value:.0f} %{between}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
