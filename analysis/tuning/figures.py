"""Figures of tuned studies, of the kind of Shallue et al. 2019 (arXiv:1811.03600)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.distributions import IntDistribution

from analysis.figures import style
from analysis.figures.lines import cross_at_foot
from analysis.figures.save import save
from analysis.stats.replicates import Array
from analysis.stats.rules import FIXED
from analysis.tuning.load import Tuned, best_trials, steps_to_target
from analysis.tuning.rates import joint_table, tuned_optima

_SEED = 20170608


def draw_tuned(
    tuned: Tuned, curves: pd.DataFrame, folder: Path, target: float | None = None
) -> Iterator[Path]:
    """Draw the figures that the studies can give.

    Without a target there is no figure of steps to it, without a tuned rate only that one.
    """
    if tuned.rate:
        yield from save(*draw_trials(tuned), folder, "tuned_trials")
        if rates := draw_rates(tuned):
            yield from save(*rates, folder, "tuned_rates")
        if len(tuned.numbers()) > 1:
            yield from save(*draw_space(tuned), folder, "tuned_space")
    if target is not None:
        reached = steps_to_target(tuned, curves, target)
        if not reached["reached_target"].any():
            return
        yield from save(*draw_steps(reached, f"{tuned.column} {target:g}"), folder, "tuned_steps")


def draw_trials(tuned: Tuned) -> tuple[Figure, pd.DataFrame]:
    """Every trial's result against its peak learning rate, a colour per batch; best ones ringed."""
    frame = _with_best(tuned, ["study", "global_batch", "trial", "outcome", "peak_lr", "value"])
    figure, (axes,) = style.new_figure()
    batches = sorted(frame["global_batch"].dropna().unique())
    for batch, color in zip(batches, style.ordered_colors(len(batches)), strict=True):
        here = frame[frame["global_batch"] == batch]
        done = here[here["outcome"] == "finished"]
        axes.scatter(done["peak_lr"], done["value"], s=14, color=color, label=f"{batch:,.0f}")
        ringed = done[done["is_best"]]
        axes.scatter(ringed["peak_lr"], ringed["value"], s=80, facecolors="none", edgecolors=color)
    cross_at_foot(axes, frame.loc[frame["outcome"] == "diverged", "peak_lr"], label="diverged")
    axes.set_xscale("log")
    axes.set_xlabel("peak learning rate")
    axes.set_ylabel(tuned.label)
    if "loss" in tuned.label:
        axes.set_yscale("log")
    axes.legend(title="global batch", fontsize=8, frameon=False)
    note = f"{len(frame)} trials of {frame['study'].nunique()} studies; ring: best of its study."
    style.titles(figure, "Trials of every study", "", note)
    return figure, frame


def _with_best(tuned: Tuned, columns: list[str]) -> pd.DataFrame:
    """Columns of every trial, and whether it is the best of its study."""
    best = best_trials(tuned).set_index(["study", "trial"]).index
    is_best = tuned.trials.set_index(["study", "trial"]).index.isin(best)
    return tuned.trials[columns].assign(is_best=is_best)


def draw_rates(tuned: Tuned) -> tuple[Figure, pd.DataFrame] | None:
    """The tuned peak learning rate against the batch, with what each rule makes of the first.

    None if no batch has enough finished trials.
    """
    optima = tuned_optima(tuned, "peak_lr", np.random.default_rng(_SEED))
    if not len(optima.batches):
        return None
    frame = joint_table(optima, log=tuned.is_log("peak_lr"))
    for rule, exponent in FIXED.items():
        ratio = frame["global_batch"] / frame["global_batch"].iloc[0]
        frame[f"{rule} rule"] = frame["best"].iloc[0] * ratio**exponent
    frame["range_low"], frame["range_high"] = optima.low_edge, optima.high_edge
    figure, (axes,) = style.new_figure()
    axes.fill_between(
        frame["global_batch"], frame["range_low"], frame["range_high"], color="#dddddd", alpha=0.4,
        label="range tuned over",
    )  # fmt: skip
    if frame["joint_low"].notna().all():
        axes.errorbar(
            frame["global_batch"], frame["best"], yerr=_bars(frame, "joint_"), fmt="none",
            color="#999999", elinewidth=5, alpha=0.5, label="all batches at once",
        )  # fmt: skip
    axes.errorbar(
        frame["global_batch"], frame["best"], yerr=_bars(frame, ""), fmt="o", color="black",
        capsize=3, label="tuned",
    )  # fmt: skip
    for i, rule in enumerate(FIXED):
        axes.plot(
            frame["global_batch"],
            frame[f"{rule} rule"],
            style.line_style(i),
            color="#555555",
            label=rule,
        )
    axes.set_yscale("log")
    axes.set_ylabel("peak learning rate")
    style.batch_axis(axes, [int(batch) for batch in frame["global_batch"]])
    axes.legend(fontsize=8, frameon=False)
    note = f"Bars: 95 % bootstrap, {optima.num_seeds} or more studies per batch. {optima.note}"
    style.titles(figure, "Tuned learning rate against batch", "", note.strip())
    return figure, frame


def _bars(frame: pd.DataFrame, which: str) -> Array:
    """Lengths below and above, cut off at the range."""
    low = np.maximum(frame[f"{which}low"], frame["range_low"])
    high = np.minimum(frame[f"{which}high"], frame["range_high"])
    return np.stack([np.maximum(frame["best"] - low, 0), np.maximum(high - frame["best"], 0)])


def draw_space(tuned: Tuned) -> tuple[Figure, pd.DataFrame]:
    """Where the trials of each batch lie in two tuned numbers, and which were best.

    Source:
        The scatter plots of Shallue et al. 2019, arXiv:1811.03600, by which they check that the
        best trials lie inside the search space.
    """
    other = next(key for key in tuned.numbers() if key != tuned.rate)
    columns = ["study", "global_batch", "trial", "outcome", "peak_lr", other, "loss"]
    frame = _with_best(tuned, columns)
    frame["place"] = frame.groupby("study")["loss"].rank(pct=True)
    batches = sorted(frame["global_batch"].dropna().unique())
    figure, panels = style.new_figure(2.6 * len(batches) + 1.2, 3.6, 1, len(batches))
    for axes, batch in zip(panels, batches, strict=True):
        here = frame[frame["global_batch"] == batch]
        done, bad = here[here["outcome"] == "finished"], here[here["outcome"] == "diverged"]
        shown = axes.scatter(
            done["peak_lr"], done[other], c=done["place"], s=22, cmap="viridis", vmin=0, vmax=1
        )
        axes.scatter(bad["peak_lr"], bad[other], marker="x", color=style.DIVERGED)
        ringed = done[done["is_best"]]
        axes.scatter(ringed["peak_lr"], ringed[other], s=90, facecolors="none", edgecolors="black")
        axes.set_xscale("log")
        axes.set_xlabel("peak learning rate")
        axes.set_title(f"batch {batch:,.0f}", fontsize=9)
        if axes is panels[-1]:
            figure.colorbar(shown, ax=axes, label="rank in its study (0 best)")
    panels[0].set_ylabel(other)
    if isinstance(tuned.numbers()[other], IntDistribution):
        panels[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    note = "Ring: best of its study. Cross: diverged. A ring at an edge suggests a wider range."
    style.titles(figure, "Trials in the search space", "", note)
    return figure, frame


def draw_steps(reached: pd.DataFrame, goal: str) -> tuple[Figure, pd.DataFrame]:
    """Fewest steps to the target against the batch, and what perfect scaling would be."""
    done = reached[reached["reached_target"]]
    frame = done.groupby("global_batch", as_index=False)["steps_to_target"].agg(
        ["mean", "min", "max", "count"]
    )
    frame["perfect_scaling"] = (
        frame["mean"].iloc[0] * frame["global_batch"].iloc[0] / frame["global_batch"]
    )
    figure, (axes,) = style.new_figure()
    spread = [frame["mean"] - frame["min"], frame["max"] - frame["mean"]]
    axes.errorbar(frame["global_batch"], frame["mean"], yerr=spread, fmt="o-", color="black",
                  capsize=3, label="best trial of each study")  # fmt: skip
    axes.plot(frame["global_batch"], frame["perfect_scaling"], "--", color="#555555",
              label="perfect scaling")  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel(f"steps to {goal}")
    style.batch_axis(axes, [int(batch) for batch in frame["global_batch"]])
    axes.legend(fontsize=8, frameon=False)
    missed = int((~reached["reached_target"]).sum())
    note = "In a straight line between ends of epochs. Bars: lowest to highest study."
    note += f" Not drawn: {missed} studies that never reached it." if missed else ""
    style.titles(figure, "Steps to target, tuned at every batch", "", note)
    return figure, frame
