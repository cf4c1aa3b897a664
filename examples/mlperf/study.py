"""The page docs/results/mlperf.md: `python mlperf/study.py FOLDER` writes its tables and figures.

FOLDER gets `tables/`, a CSV file per workload; `workloads.csv`, what was estimated of each;
and the figures `examples_to_target.png`, `exponents.png` and `one_curve.png`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from tables import WORKLOADS, newest, write_tables

from analysis.figures import style
from analysis.report.scaling import SETTINGS, cells_without_wild, costs_around, setting_by_batch
from analysis.stats.critical_batch import CriticalBatch, critical_batch, doubling_batch
from analysis.stats.powers import batch_power, proportional_up_to
from analysis.stats.replicates import Estimate, Replicates
from analysis.tables.any_table import read_table

BLUE, ORANGE, RED, GREY = "#0072b2", "#d55e00", "#c1272d", "#8a8a8a"


@dataclass
class Workload:
    name: str
    title: str
    reached: pd.DataFrame
    cells: Replicates  # without wild seeds
    fit: CriticalBatch  # without wild seeds
    row: dict  # of workloads.csv

    @property
    def batches(self) -> np.ndarray:
        return self.cells.points["global_batch"].to_numpy(float)

    @property
    def ratio(self) -> float:
        return self.fit.fewest_examples / self.fit.fewest_steps

    @property
    def holds(self) -> bool:
        return bool(np.isfinite(self.fit.critical_batch.value))

    @property
    def is_known(self) -> bool:
        """Whether the critical batch has an interval with two ends."""
        found = self.fit.critical_batch
        return self.holds and np.isfinite(found.low) and np.isfinite(found.high)


def judge(path: Path) -> Workload:
    name = path.stem
    reached = read_table(path).reached
    cells, wild = cells_without_wild(reached)
    whole = reached.assign(outcome="finished")
    kept = whole if not wild else drop(whole, cells)
    fit, doubling = critical_batch(kept), doubling_batch(kept)
    work = Workload(name, WORKLOADS[name][0], reached, cells, fit, {})
    bend = fit.critical_batch.value if work.holds else doubling.value
    below, above = sides(cells, bend)
    row = {
        "workload": name, "release": newest(name)[0], "smallest": int(work.batches[0]),
        "largest": int(work.batches[-1]), "batches": len(cells.counts), "seeds": len(reached),
        "cost_of_largest": cells.means[-1] / cells.means[0],
        "e_min_over_s_min": work.ratio, "critical_batch": fit.critical_batch.value,
        "low": fit.critical_batch.low, "high": fit.critical_batch.high,
        "farthest": fit.farthest, "lack_of_fit_p": fit.lack_of_fit_p,
        "holds_up_to": fit.holds_up_to, "doubling_batch": doubling.value,
        "doubling_low": doubling.low, "doubling_high": doubling.high,
        "stuck_batches": int(cells.is_coarse.sum()), "wild": wild, "below": below, "above": above,
        "note": fit.critical_batch.note,
    }  # fmt: skip
    for column in SETTINGS:
        if column in reached:
            row |= setting(reached, column)
    work.row = row
    return work


def drop(reached: pd.DataFrame, cells: Replicates) -> pd.DataFrame:
    """The rows that are in the cells."""
    pairs = zip(cells.points["global_batch"], cells.seeds, strict=True)
    known = {(batch, seed) for batch, seeds in pairs for seed in seeds}
    return reached[[pair in known for pair in zip(reached.global_batch, reached.seed, strict=True)]]


def sides(cells: Replicates, bend: float) -> tuple[float, float]:
    """What a doubling costs up to a batch, and from it on; nan where there are no two batches."""
    batches = cells.points["global_batch"].to_numpy(float)
    found = {ends: 2**power.value - 1 for ends, power in costs_around(cells, bend)}
    first = f"from {batches[0]:,.0f} "
    below = next((cost for ends, cost in found.items() if ends.startswith(first)), np.nan)
    above = [cost for ends, cost in found.items() if not ends.startswith(first)]
    if batches[0] >= bend:
        below, above = np.nan, [*found.values()]
    return below, above[0] if above else np.nan


def setting(reached: pd.DataFrame, column: str) -> dict:
    batches, values = setting_by_batch(reached, column)
    used = values > 0
    kind = "rate" if column == "peak_lr" else "warmup"
    found = {f"{kind}_batches": int(used.sum())}
    if used.sum() < 3:
        return found
    power: Estimate = batch_power(batches[used], values[used])
    ends = {f"{kind}_power": power.value, f"{kind}_low": power.low, f"{kind}_high": power.high}
    return found | ends | {f"{kind}_linear_to": proportional_up_to(batches[used], values[used])}


def costs_by_place(works: list[Workload]) -> pd.DataFrame:
    """What a doubling costs over all workloads whose law holds, by batch over critical batch."""
    pairs = []
    for work in works:
        if work.is_known:
            places = np.sqrt(work.batches[1:] * work.batches[:-1]) / work.ratio
            steps = np.diff(np.log(work.cells.means)), np.diff(np.log2(work.batches))
            pairs += [(work.title, *pair) for pair in zip(places, *steps, strict=True)]
    frame = pd.DataFrame(pairs, columns=["workload", "place", "growth", "doublings"])
    ends = [0, 0.1, 0.3, 1, 3]
    frame["place_is"] = pd.cut(frame["place"], ends)
    rows = []
    for place, group in frame.groupby("place_is", observed=True):
        each = group.groupby("workload")[["growth", "doublings"]].sum()
        each = np.expm1(each["growth"] / each["doublings"])
        x = np.sqrt((group["place"] ** 2 * group["doublings"]).sum() / group["doublings"].sum())
        rows.append({
            "batch_over_critical": str(place), "workloads": len(each), "median": each.median(),
            "lowest": each.min(), "highest": each.max(),
            "law": (1 + x * 2**0.5) / (1 + x / 2**0.5) - 1,
        })  # fmt: skip
    return pd.DataFrame(rows)


def short(batch: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if batch >= size:
            return f"{batch / size:.3g}{unit}"
    return f"{batch:.3g}"


@style.use_style()
def draw_panels(works: list[Workload]) -> plt.Figure:
    """Examples to target against the batch: a panel for each workload, on one scale."""
    figure, grid = plt.subplots(4, 5, figsize=(11, 8.4), layout="constrained", sharey=True)
    figure.get_layout_engine().set(hspace=0.06, wspace=0.03)
    panels = list(grid.flat)
    for axes, work in zip(panels, works, strict=False):
        draw_panel(axes, work)
    draw_key(panels[-1])
    title(
        figure,
        "What a larger batch costs: examples to the target, times those of the smallest batch",
        "MLPerf's reference convergence points; workloads ordered by their largest batch over the "
        "critical batch, at which twice the fewest examples are needed",
    )
    figure.supxlabel("global batch", fontsize=8)
    return figure


def title(figure: plt.Figure, text: str, small: str) -> None:
    """Two lines over the panels; the second is drawn into room that the first one leaves."""
    figure.suptitle(f"{text}\n", x=0.01, ha="left", fontsize=11, fontweight="bold",
                    linespacing=1.9)  # fmt: skip
    down = 0.32 / figure.get_figheight()
    figure.text(0.01, 1 - down, small, fontsize=8, color="#555555", va="top")


def draw_panel(axes: plt.Axes, work: Workload) -> None:
    unit, batches = work.cells.means[0], work.batches
    critical = work.fit.critical_batch
    low, high = batches[0] / 1.25, batches[-1] * 1.25
    has_mark = work.is_known and critical.value < 4 * batches[-1]
    if has_mark:
        high = max(high, critical.value * 1.25)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(0.82, 4.4))
    axes.axhline(1, color="#dddddd", linewidth=0.8, zorder=0)
    axes.axhline(2, color="#dddddd", linewidth=0.8, zorder=0)
    axes.axhline(4, color="#dddddd", linewidth=0.8, zorder=0)
    at = np.geomspace(low, high, 100)
    curve = (work.fit.fewest_examples + work.fit.fewest_steps * at) / unit
    inside = (at >= batches[0]) & (at <= batches[-1])
    color = BLUE if work.holds else ORANGE
    axes.plot(at[inside], curve[inside], color=color, linewidth=1.8, alpha=0.9,
              linestyle="-" if work.holds else (0, (4, 2)))  # fmt: skip
    axes.plot(at[at >= batches[-1]], curve[at >= batches[-1]], ":", color=color, linewidth=1.2)
    if has_mark:
        axes.axvspan(critical.low, min(critical.high, high), color=BLUE, alpha=0.13, linewidth=0)
        axes.axvline(critical.value, color=BLUE, linewidth=1)
        axes.text(critical.value, 4.1, short(critical.value) + " ", color=BLUE, ha="right",
                  va="top", fontsize=8, fontweight="bold")  # fmt: skip
    else:
        why = "law rejected" if not work.holds else "not determined"
        why = "no interval" if "every seed" in critical.note else why
        axes.text(0.05, 0.93, why, transform=axes.transAxes, va="top", color=color, fontsize=7.5)
    near = work.reached[work.reached.examples_to_target / unit < 4.4]
    spread = np.exp(np.random.default_rng(0).uniform(-0.03, 0.03, len(near)))
    axes.plot(near.global_batch * spread, near.examples_to_target / unit, ".", color="#bbbbbb",
              markersize=2.2, alpha=0.6, zorder=1, markeredgewidth=0)  # fmt: skip
    axes.plot(batches, work.cells.means / unit, "o", color="#222222", markersize=3.8, zorder=3)
    if work.row["wild"]:
        batch = float(work.row["wild"].split(" at ")[1].split(" is ")[0].replace(",", ""))
        axes.plot(batch, 4.15, "^", color=RED, markersize=5, clip_on=False, zorder=4)
        if work.reached.examples_to_target.max() / unit < 4:
            value = work.reached.loc[work.reached.global_batch == batch, "examples_to_target"].max()
            axes.lines[-1].set_ydata([value / unit])
    axes.set_title(work.title, fontsize=8.5, fontweight="bold", loc="left", pad=4)
    ends = [batches[0], batches[-1]]
    axes.xaxis.set_major_locator(FixedLocator(ends))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ends, [short(batch) for batch in ends])
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 4]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks([1, 2, 4], ["1x", "2x", "4x"])


def draw_key(axes: plt.Axes) -> None:
    axes.axis("off")
    marks = [
        axes.plot([], [], "o", color="#222222", markersize=3.8)[0],
        axes.plot([], [], ".", color="#bbbbbb")[0],
        axes.plot([], [], color=BLUE, linewidth=1.8)[0],
        axes.axvspan(np.nan, np.nan, color=BLUE, alpha=0.25),
        axes.plot([], [], color=ORANGE, linewidth=1.8, linestyle=(0, (4, 2)))[0],
        axes.plot([], [], "^", color=RED, markersize=5)[0],
    ]
    words = [
        "mean of a batch", "a seed", "fitted law", "critical batch, 95 %",
        "law more than 10 % off", "wild seed, left out",
    ]  # fmt: skip
    axes.legend(marks, words, loc="center left", fontsize=8, handlelength=1.6, labelspacing=0.9)


@style.use_style()
def draw_exponents(works: list[Workload]) -> plt.Figure:
    """Exponents of rate and warmup against the batch, with their intervals."""
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 5.8), layout="constrained", sharey=True)
    title(figure, "Which rules practitioners use", "Exponents of the batch, with 95 % intervals "
          "from the scatter of the batches; grey: wider than 1.5; without bar: exact")  # fmt: skip
    named = {"rate": ("constant", "square root", "linear"),
             "warmup": ("same examples", "", "same steps")}  # fmt: skip
    rows = sorted(works, key=lambda work: (work.row.get("rate_power", np.nan), work.title))
    for axes, (kind, rules) in zip(panels, named.items(), strict=True):
        for place, rule in zip((0, 0.5, 1), rules, strict=True):
            axes.plot([place] * 2, [-0.7, len(rows) - 0.4], color="#cccccc", linewidth=1, zorder=0)
            axes.text(place, len(rows) - 0.2, rule, ha="center", va="bottom", fontsize=7.5,
                      color="#555555")  # fmt: skip
        for y, work in enumerate(rows):
            value = work.row.get(f"{kind}_power", np.nan)
            if not np.isfinite(value):
                axes.text(2.2, y, "no warmup known at three batches", va="center", ha="right",
                          fontsize=6.5, color="#aaaaaa")  # fmt: skip
                continue
            low, high = work.row[f"{kind}_low"], work.row[f"{kind}_high"]
            is_wide = high - low > 1.5
            color = "#bbbbbb" if is_wide else BLUE
            axes.plot([max(low, -0.75), min(high, 2.25)], [y, y], color=color, linewidth=2.4,
                      alpha=0.55, solid_capstyle="butt")  # fmt: skip
            axes.plot(value, y, "o", color=color, markersize=5)
        axes.set(xlim=(-0.75, 2.25), ylim=(-0.7, len(rows) + 0.6))
        axes.set_xticks([-0.5, 0, 0.5, 1, 1.5, 2], ["-0.5", "0", "0.5", "1", "1.5", "2"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[0].set_yticks(range(len(rows)), [work.title for work in rows], fontsize=8)
    panels[0].set_xlabel("exponent of the peak learning rate in the batch")
    panels[1].set_xlabel("exponent of the warmup, in examples or epochs, in the batch")
    return figure


@style.use_style()
def draw_one_curve(works: list[Workload]) -> plt.Figure:
    """All workloads whose law holds, in units of their fewest examples and critical batch."""
    figure, axes = plt.subplots(figsize=(8, 5.2), layout="constrained")
    title(
        figure,
        "One law from speech to language models: examples = fewest (1 + batch / critical batch)",
        "Each workload has its own two numbers, fitted to these points; the shape is the same",
    )
    at = np.geomspace(0.01, 6, 200)
    axes.plot(at, 1 + at, color=BLUE, linewidth=6, alpha=0.25, solid_capstyle="round")
    axes.axvline(1, color=BLUE, linewidth=1)
    shown = [work for work in works if work.is_known]
    for work, mark in zip(shown, style.ordered_marks(len(shown)), strict=True):
        axes.plot(work.batches / work.ratio, work.cells.means / work.fit.fewest_examples,
                  marker=mark.marker, color=mark.color, markersize=4.6, linestyle=" ",
                  label=work.title)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(0.012, 5), ylim=(0.88, 6))
    axes.set_xticks([0.02, 0.1, 0.5, 1, 2, 4], ["0.02", "0.1", "0.5", "1", "2", "4"])
    axes.set_yticks([1, 1.5, 2, 3, 5], ["1x", "1.5x", "2x", "3x", "5x"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.set_xlabel("batch / critical batch")
    axes.set_ylabel("examples to target / fewest")
    axes.text(0.06, 1.6, "a doubling costs little", color=GREY, ha="center", fontsize=9)
    axes.text(1.1, 1.02, "a doubling\nbuys little time", color=GREY, fontsize=9)
    figure.legend(loc="outside right center", fontsize=8)
    return figure


def markdown(works: list[Workload]) -> str:
    """The table of the page."""
    lines = [
        "| workload (release) | batches | seeds | largest costs | critical batch (95 %) | "
        "farthest | rate | warmup |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for work in works:
        row, found = work.row, work.fit.critical_batch
        critical = f"{found.value:,.0f} ({found.low:,.0f} to {found.high:,.0f})"
        if not work.is_known:
            critical = "none" if not work.holds else f"{found.value:,.0f} (not determined)"
        powers = [exponent(row, kind) for kind in ("rate", "warmup")]
        lines.append(
            f"| {work.title} ({row['release']}) | {row['batches']}, {row['smallest']:,} to "
            f"{row['largest']:,} | {row['seeds']} | {row['cost_of_largest']:.2f}x | {critical} | "
            f"{100 * row['farthest']:+.0f} % | {' | '.join(powers)} |"
        )
    return "\n".join(lines)


def exponent(row: dict, kind: str) -> str:
    value = row.get(f"{kind}_power", np.nan)
    if not np.isfinite(value):
        return ""
    half = row[f"{kind}_high"] - value
    return f"{value:.2f}" + (f" +- {half:.2f}" if half > 0.005 else "")


def main(folder: Path) -> None:
    works = [judge(path) for path in write_tables(folder / "tables")]
    works.sort(key=lambda work: work.batches[-1] / work.ratio, reverse=True)
    rows = pd.DataFrame([work.row for work in works])
    rows.to_csv(folder / "workloads.csv", index=False, float_format="%.4g")
    costs_by_place(works).to_csv(folder / "doublings.csv", index=False, float_format="%.3g")
    for name, draw in (("examples_to_target", draw_panels), ("exponents", draw_exponents),
                       ("one_curve", draw_one_curve)):  # fmt: skip
        draw(works).savefig(folder / f"{name}.png", dpi=130)
    print(markdown(works))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
