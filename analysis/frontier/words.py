"""The frontier as text: a table of the batches, the knee, the next doubling, the closed form."""

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.frontier.closed_form import ClosedForm
from analysis.frontier.cluster import Cluster
from analysis.frontier.model import Work
from analysis.frontier.tradeoff import Tradeoff


def set_up(work: Work, cluster: Cluster) -> Iterator[str]:
    """What was assumed, a sentence each."""
    links = cluster.hardware
    yield (
        f"Cluster {cluster.name}: nodes of {cluster.per_node}, {links.node_gb_per_s:g} GB/s "
        f"within, {links.network_gb_per_s:g} GB/s between; exchange by "
        f"{work.algorithm or 'the faster of ring and tree'}, {work.num_bytes / 1e6:.3g} MB of "
        f"gradients in buckets of {links.bucket_mib:g} MiB."
    )
    yield (
        f"One device: {work.speeds.in_words}; evaluations and checkpoints take "
        f"{work.evaluation_share:.1%} of the time of training."
    )


def in_words(found: Tradeoff, form: ClosedForm | str, cluster: Cluster) -> Iterator[str]:
    """The table of the batches, each at its fastest, and the sentences below it."""
    yield table(found.best, cluster, form).to_string(index=False)
    yield from sentences(found, form, cluster)


def table(rows: pd.DataFrame, cluster: Cluster, form: ClosedForm | str) -> pd.DataFrame:
    """Rows of `points`, as text."""
    shown = pd.DataFrame(
        {
            "batch": rows["global_batch"].map("{:,}".format),
            "devices": rows["devices"].map("{:,}".format),
            "micro-batch": [
                f"{m:.0f}" + (f" x {a:.0f}" if a > 1 else "")
                for m, a in zip(rows["micro_batch"], rows["accumulation_steps"], strict=True)
            ],
            "time": _with_ends(rows, "time_s", "time_low_s", "time_high_s", _time),
            "device-hours": _with_ends(
                rows, "device_hours", "device_hours_low", "device_hours_high", _number
            ),
        }
    )
    if cluster.price:
        shown["cost"] = [_money(hours, cluster.price) for hours in rows["device_hours"]]
    shown["examples"] = rows["examples_ratio"].map("x {:.2f}".format)
    shown["machine"] = rows["machine_ratio"].map("x {:.2f}".format)
    shown["exchange"] = rows["exchange_s"].map(lambda s: f"{1e3 * s:.3g} ms")
    shown["if not hidden"] = [
        f"{exchange / (step - exposed + exchange):.1%}"
        for step, exchange, exposed in zip(
            rows["step_s"], rows["exchange_s"], rows["exposed_s"], strict=True
        )
    ]
    shown["exposed"] = rows["exchange_share"].map("{:.1%}".format)
    shown["evaluation"] = rows["evaluation_share"].map("{:.1%}".format)
    if isinstance(form, ClosedForm):
        shown["closed form"] = [
            _time((form.fewest_steps * b + form.fewest_examples) / n / form.rate)
            for b, n in zip(rows["global_batch"], rows["devices"], strict=True)
        ]
    return shown


def sentences(found: Tradeoff, form: ClosedForm | str, cluster: Cluster) -> Iterator[str]:
    """The knee, the next doubling and the closed form."""
    knee, again = found.knee, found.knee_share
    sure = "" if pd.isna(again) else f" With seeds resampled, it is at this batch in {again:.0%}."
    is_fastest = knee["time_s"] <= found.frontier["time_s"].min()
    beyond = "a percent of time costs more than a percent of device-hours"
    beyond = "Nothing is faster" if is_fastest else f"Beyond it {beyond}"
    yield (
        f"The knee: {_place(knee)}, {_time(knee['time_s'])} for {_bill(knee, cluster)}. "
        f"{beyond}.{sure}"
    )
    if found.doubled is None:
        yield "The next doubling of devices buys nothing: no number of devices is faster."
    else:
        bought = _share_in_words(found.time_share, less=True)
        paid = _share_in_words(found.hours_share, less=False)
        ratio = found.doubled["devices"] / knee["devices"]
        to = "The next doubling, to" if ratio == 2 else "The next doubling, as far as"
        to = to if ratio <= 2 else "The next doubling is no faster; the next faster point, with"
        yield (
            f"{to} {_place(found.doubled)}, buys {bought} of the time for {paid} "
            f"of the cost: {_bill(found.doubled, cluster)}."
        )
    if isinstance(form, str):
        yield form
        return
    yield (
        f"In closed form, without exchange and evaluation: {form.fewest_steps:,.0f} steps at least "
        f"and {form.fewest_examples:,.0f} examples at least; the knee and twice the fewest "
        f"device-hours at batch {form.critical_batch:,.0f}, {form.knee:,.0f} devices with "
        f"{form.micro_batch:g} examples each."
    )


def as_json(
    found: Tradeoff, form: ClosedForm | str, work: Work, cluster: Cluster
) -> dict[str, Any]:
    """All of it as plain values; null for what does not exist."""
    closed = None
    if isinstance(form, ClosedForm):
        closed = {
            "fewest_steps": form.fewest_steps,
            "fewest_examples": form.fewest_examples,
            "critical_batch": form.critical_batch,
            "devices": form.knee,
        }
    return {
        "cluster": cluster.name,
        "price": cluster.price,
        "gradient_mb": work.num_bytes / 1e6,
        "evaluation_share": work.evaluation_share,
        "batches": _records(found.best),
        "frontier": _records(found.frontier),
        "knee": _records(found.knee.to_frame().T)[0],
        "knee_share": None if pd.isna(found.knee_share) else found.knee_share,
        "next_doubling": None
        if found.doubled is None
        else {
            **_records(found.doubled.to_frame().T)[0],
            "time_share": _plain(found.time_share),
            "device_hours_share": _plain(found.hours_share),
        },
        "closed_form": closed,
    }


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    whole = ("global_batch", "devices", "micro_batch", "accumulation_steps")
    read: list[dict[str, Any]] = json.loads(rows.to_json(orient="records"))
    return [{k: int(v) if k in whole else v for k, v in row.items()} for row in read]


def _plain(values: tuple[float, ...]) -> list[float | None]:
    return [None if pd.isna(value) else value for value in values]


def _place(row: pd.Series) -> str:
    devices = int(row["devices"])
    return f"{devices:,} device{'s' * (devices != 1)} at batch {int(row['global_batch']):,}"


def _bill(row: pd.Series, cluster: Cluster) -> str:
    hours = row["device_hours"]
    money = f", {_money(hours, cluster.price)}" if cluster.price else ""
    return f"{_number(hours)} device-hours{money}"


def _money(hours: float, price: str) -> str:
    currency, amount = price.split(":")
    return f"{currency} {_number(hours * float(amount))}"


def _share_in_words(share: tuple[float, float, float], *, less: bool) -> str:
    value, *ends = (1 - s if less else s - 1 for s in share)
    low, high = sorted(ends)
    between = "" if pd.isna(low) or low == high else f" ({100 * low:.0f} to {100 * high:.0f})"
    return f"{100 * value:.0f} %{between}" + ("" if less else " more")


def _with_ends(rows: pd.DataFrame, value: str, low: str, high: str, shown: Any) -> list[str]:
    ends = zip(rows[value], rows[low], rows[high], strict=True)
    return [
        shown(v) if pd.isna(a) else f"{shown(v)} ({shown(a)} to {shown(b)})" for v, a, b in ends
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
