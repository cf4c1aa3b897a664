"""Figures of tuned studies, of the kind of Shallue et al. 2019 (arXiv:1811.03600)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.final import BATCH
from analysis.figures.sheet import Drawing, Sheet, save
from analysis.figures.style import Width
from analysis.figures.target import draw_steps_to_target
from analysis.stats.laws import FIXED
from analysis.stats.replicates import Array, make_rng
from analysis.tuning.rates import joint_table, tuned_optima
from analysis.tuning.studies import Tuned, best_trials, steps_to_target
from sweeper.spec.sentences import several


def draw_tuned(
    tuned: Tuned,
    curves: pd.DataFrame,
    folder: Path,
    target: float | None = None,
    width: Width = "screen",
) -> Iterator[Path]:
    """Draw the figures that the studies can give.

    Without a target there is no figure of steps to it, without a tuned rate only that figure.
    """
    if tuned.rate:
        yield from save(draw_trials(tuned, width), folder, "tuned_trials")
        if rates := draw_rates(tuned, width):
            yield from save(rates, folder, "tuned_rates")
    if target is not None:
        reached = steps_to_target(tuned, curves, target)
        goal, about = f"{tuned.metric.name} {target:g}", "The best trial of each study."
        if steps := draw_steps_to_target(reached, goal, about, width=width):
            yield from save(steps, folder, "tuned_steps")


@style.use_style()
def draw_trials(tuned: Tuned, width: Width = "screen") -> Drawing:
    """Every trial's result against its peak learning rate, a colour per batch; best ones ringed."""
    frame = _mark_best(tuned, "outcome", "peak_lr", "value")
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    batches = sorted(frame["global_batch"].dropna().unique())
    for batch, mark in zip(batches, style.ordered_marks(len(batches)), strict=True):
        here = frame[frame["global_batch"] == batch]
        done = here[here["outcome"] == "finished"]
        ringed = done[done["is_best"]]
        ink: dict[str, Any] = {"color": mark.color, "linestyle": " "}
        axes.plot(done["peak_lr"], done["value"], marker=mark.marker, markeredgewidth=0,
                  label=f"{batch:,.0f}", **ink)  # fmt: skip
        axes.plot(ringed["peak_lr"], ringed["value"], marker="o", markersize=7,
                  markerfacecolor="none", **ink)  # fmt: skip
        lost = here.loc[here["outcome"] == "diverged", "peak_lr"]
        axes.plot(lost, [0.02] * len(lost), "x", color=mark.color, clip_on=False,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xscale("log")
    if "loss" in tuned.metric.label:
        axes.set_yscale("log")
    axes.grid(visible=True, axis="y")
    sheet.label("peak learning rate", tuned.metric.label)
    studies = several(frame["study"].nunique(), "study")
    is_lost = (frame["outcome"] == "diverged").any()
    crosses = "; crosses at the foot: diverged" if is_lost else ""
    note = f"{several(len(frame), 'trial')} of {studies}; rings: best of each study{crosses}."
    return sheet.finish(frame, "Trials of every study", [note], BATCH)


def _mark_best(tuned: Tuned, *columns: str) -> pd.DataFrame:
    """Columns of every trial, and whether it is the best of its study."""
    keys = ["study", "trial"]
    best = best_trials(tuned).set_index(keys).index
    frame = tuned.trials[["study", "global_batch", "trial", *columns]]
    return frame.assign(is_best=pd.MultiIndex.from_frame(frame[keys]).isin(best))


@style.use_style()
def draw_rates(tuned: Tuned, width: Width = "screen") -> Drawing | None:
    """The tuned peak learning rate against the batch, with each rule's rates from the first.

    None if no batch has enough finished trials.
    """
    optima = tuned_optima(tuned, "peak_lr", make_rng())
    if not len(optima.batches):
        return None
    frame = joint_table(optima, log=tuned.is_log("peak_lr"))
    for rule, exponent in FIXED.items():
        ratio = frame["global_batch"] / frame["global_batch"].iloc[0]
        frame[f"{rule} rule"] = frame["best"].iloc[0] * ratio**exponent
    frame["range_low"], frame["range_high"] = optima.low_edge, optima.high_edge
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    batches = frame["global_batch"]
    axes.fill_between(
        batches, frame["range_low"], frame["range_high"], color="#dddddd", alpha=0.4,
        label="range tuned over",
    )  # fmt: skip
    known = frame[np.isfinite(frame["best"])]  # not at an end of the range
    at = known["global_batch"]
    if frame["joint_low"].notna().all():
        axes.errorbar(
            at, known["best"], yerr=_bars(known, "joint_"), fmt="none", color="#999999",
            elinewidth=4, alpha=0.5, label="all batches at once",
        )  # fmt: skip
    axes.errorbar(
        at, known["best"], yerr=_bars(known, ""), fmt="o", color="black", capsize=2,
        label="tuned",
    )  # fmt: skip
    for rule, mark in style.named_marks(FIXED).items():
        line = frame[f"{rule} rule"]
        axes.plot(batches, line, mark.linestyle, color=mark.color, label=f"{rule} rule")
    axes.set_yscale("log")
    style.batch_axis(axes, [int(batch) for batch in batches])
    sheet.label(BATCH, "peak learning rate")
    bars = f"Bars: 95 % bootstrap, {optima.num_seeds} or more studies per batch."
    note = f"{bars} {optima.note}"
    return sheet.finish(frame, "Tuned learning rate against batch", [note.strip()])


def _bars(frame: pd.DataFrame, which: str) -> Array:
    """Lengths below and above, cut off at the range."""
    low = np.maximum(frame[f"{which}low"], frame["range_low"])
    high = np.minimum(frame[f"{which}high"], frame["range_high"])
    return np.stack([np.maximum(frame["best"] - low, 0), np.maximum(high - frame["best"], 0)])
