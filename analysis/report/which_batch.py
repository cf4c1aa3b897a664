"""Which batch to train with: the largest that loses little, and what the seeds cannot exclude."""

from collections.abc import Iterable
from math import comb

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.figures.points import POINT, points
from analysis.stats.contrasts import ONE_SIDED, Arms
from analysis.stats.replicates import validation_size
from analysis.stats.wild import drop_wild
from analysis.tables.comparable_runs import warmup_unit
from analysis.tables.metric import Metric
from analysis.tables.which_runs import BREAKING, finished_runs, negligible_margin
from sweeper.spec.sentences import several

QUESTION = "Which batch should I train with?"

_FEW = "Not run: two or more batches whose runs all finished are needed."

#: An epoch that is faster by less than this is not said to be faster.
_FASTER = 1.05


def compare_batches(runs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """The best setting of each batch, and how much worse it is than the best of the other batches.

    Settings with a run that diverged are left out, and those of one seed where any has more. The
    limits are Welch's at 95 %, corrected for all pairs of batches (Bonferroni), as the best is
    known from the same seeds.

    Uses `outcome`, `global_batch`, `warmup_epochs`, `lr_rule`, `base_lr`, `examples_per_s`,
    `device_kind` and the metric.

    Returns:
        a row per batch: its setting, `num_seeds`, `loss`, `at_least`, `at_most` (null without two
        seeds), `speed` [examples per second; null if on several kinds of devices].
    """
    setting = _setting(runs)
    frame = points(runs, metric.name, setting).dropna(subset=["mean"])
    frame["num_seeds"] = frame["values"].map(len)
    fewest = min(2, frame["num_seeds"].max()) if len(frame) else 0
    frame = frame[(frame["num_diverged"] == 0) & (frame["num_seeds"] >= fewest)]
    order = (metric.sign * frame["mean"]).sort_values(ascending=False, kind="stable").index
    best = frame.loc[order].drop_duplicates("global_batch")  # the best batch first
    arms = Arms.from_seeds([np.array(values) for values in best["values"]])
    if size := validation_size(runs[metric.name].to_numpy(float)) if metric.unit == "%" else None:
        arms = arms.floor_variances(size)
    rival = np.zeros(len(best), dtype=int)
    rival[:1] = min(1, len(best) - 1)  # the best is compared with the next
    errors = arms.variances / arms.counts
    squares = errors**2 / np.maximum(arms.counts - 1, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = (errors + errors[rival]) ** 2 / (squares + squares[rival])
        width = stdtrit(freedom, 1 - ONE_SIDED / max(1, comb(len(best), 2)))
    half = width * np.sqrt(errors + errors[rival])
    loss = metric.sign * (arms.means[rival] - arms.means)
    speed = runs.groupby("global_batch")["examples_per_s"].median()
    speed = speed if len({*runs["device_kind"].dropna()}) < 2 else speed * np.nan
    kept = best[[*setting, "num_seeds"]].assign(
        loss=loss, at_least=loss - half, at_most=loss + half, speed=best["global_batch"].map(speed)
    )
    return kept.reset_index(drop=True)


def _setting(runs: pd.DataFrame) -> list[str]:
    """What the best of is taken at each batch: the rate too, if there are several."""
    return [*POINT, *(["base_lr"] if len({*runs["base_lr"].dropna()}) > 1 else [])]


def advise_batch(runs: pd.DataFrame, metric: Metric) -> tuple[str, pd.DataFrame]:
    """The fastest batch whose mean is within a margin of the best, in words; and all batches.

    Of batches that are equally fast, or whose speed is not known, the largest. The words say which
    batches are shown to lose more, and what the seeds cannot exclude.
    """
    table = compare_batches(runs, metric)
    if len(table) < 2:
        return _FEW, table.iloc[:0]
    values = finished_runs(runs, metric)[metric.name]
    margin, _ = negligible_margin(metric, BREAKING, values, values)
    within = table[table["loss"] <= margin]
    is_slow = within["speed"] * _FASTER < within["speed"].max()
    chosen = within[~is_slow].nlargest(1, "global_batch").iloc[0]
    batch, best, loss = chosen["global_batch"], table["global_batch"].iloc[0], chosen["loss"]
    rule = f", lr {chosen['lr_rule']}" if len({*runs["lr_rule"]}) > 1 else ""
    if "base_lr" in table:
        rule += f", base_lr {chosen['base_lr']:.3g}"
    unit = warmup_unit(runs)
    length = chosen["warmup_epochs"]
    warmup = f"{length:g} {unit.removesuffix('s' * bool(length == 1))}"
    where = f"Use {batch:,} (warmup {warmup}{rule})"
    if batch == best:
        mean = f"its mean is the best of {several(len(table), 'batch')}"
    else:
        mean = f"its mean is {_format_amount(loss, metric)} worse than the best, that of {best:,}"
    shown = _name_batches(table.loc[table["at_least"] > margin, "global_batch"])
    verb = "are" if " and " in shown else "is"
    lost = f"{shown or 'no batch'} {verb} shown to lose more than {_format_amount(margin, metric)}"
    parts = [mean, lost, _describe_speed(chosen, within, table), _describe_risk(chosen, metric)]
    left_out = _name_batches({*runs["global_batch"]} - {*table["global_batch"]})
    rest = f" Left out, as no setting has only runs that finished: {left_out}." if left_out else ""
    words = f"{where}: {'; '.join(filter(None, parts))}.{rest}"
    kept, wild = drop_wild(runs, _setting(runs), metric.name)
    if wild:
        without, _ = advise_batch(kept, metric)
        words += f" {wild[0].upper()}{wild[1:]}; without: {without[0].lower()}{without[1:]}"
    return words, _label_columns(table, metric, unit)


def _label_columns(table: pd.DataFrame, metric: Metric, unit_of_warmup: str) -> pd.DataFrame:
    """The batches in order, with units in their heads; how much worse the mean of each is."""
    scale, unit = _scale(metric)
    names = ("loss", "at_least", "at_most")
    amounts = {name: (scale * table[name]).round(4) for name in names}
    heads = {
        "global_batch": "batch", "warmup_epochs": f"warmup [{unit_of_warmup}]",
        "num_seeds": "seeds",
        "loss": f"worse than the best other [{unit}]", "at_least": "at least (95 %)",
        "at_most": "at most (95 %)", "speed": "examples/s",
    }  # fmt: skip
    table = table.assign(**amounts, speed=table["speed"].round())
    return table.sort_values("global_batch").rename(columns=heads)


def _scale(metric: Metric) -> tuple[int, str]:
    return (100, "points") if metric.unit == "%" else (1, metric.unit or f"of {metric.name}")


def _name_batches(batches: Iterable[int]) -> str:
    return " and ".join(f"{batch:,}" for batch in sorted(batches))


def _describe_speed(chosen: pd.Series, within: pd.DataFrame, table: pd.DataFrame) -> str:
    """How much faster an epoch is than at the smallest batch; empty if that is not known."""
    smallest = table.nsmallest(1, "global_batch").iloc[0]
    parts: list[str] = []
    if chosen["global_batch"] != smallest["global_batch"] and chosen["speed"] > 0:
        faster = chosen["speed"] / smallest["speed"]
        times = f"{faster:.2g} times faster" if faster > _FASTER else "no faster"
        parts += [f"an epoch is {times} than at {smallest['global_batch']:,}"]
    larger = within[within["global_batch"] > chosen["global_batch"]]
    if len(larger):
        parts += [f"{_name_batches(larger['global_batch'])} would do as well, but no faster"]
    return "; ".join(parts)


def _describe_risk(chosen: pd.Series, metric: Metric) -> str:
    seeds = several(int(chosen["num_seeds"]), "seed")
    if pd.isna(chosen["at_most"]):
        why = "" if chosen["num_seeds"] < 2 else " that all measured the same"
        return f"{seeds}{why} cannot exclude any loss"
    if chosen["at_most"] <= 0:
        return f"{seeds} exclude that another batch is better (95 %)"
    most = _format_amount(chosen["at_most"], metric)
    return f"{seeds} cannot exclude a loss of up to {most} (95 %)"


def _format_amount(value: float, metric: Metric) -> str:
    scale, unit = _scale(metric)
    return f"{scale * value:.2g} {unit}"
