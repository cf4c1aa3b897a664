"""The page docs/results/atlas.md: a command a table writes its answers and its figure.

python atlas/study.py FOLDER zhang
python atlas/study.py FOLDER scan-bench               (pip install --no-deps scan-bench==0.2.3)
python atlas/study.py FOLDER step-law PATH_OF_ITS_DATA_FOLDER
python atlas/study.py FOLDER own RESULTS              (runs of several lengths: docs/results/...)
python atlas/study.py FOLDER summary                  (after the others)
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.figures import style
from analysis.figures.atlas import BESTS
from analysis.report.any_runs import judge_lengths, judge_table
from analysis.stats.answer import Answer
from analysis.stats.size_laws import regress
from analysis.tables.any_table import read_table
from analysis.tables.load import load_curves, load_runs
from analysis.tables.metric import AskedMetric, with_metric

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#8a8a8a"
STEP_LAW = {
    "step-law dense": ("dense_lr_bs_loss.csv", "batch=bs lr=lr loss='smooth loss' size=N data=D"),
    "step-law MoE": ("moe_lr_bs_loss.csv", "batch=bs lr=lr loss='smooth loss' size=Na data=D"),
}
CLIP = (
    "batch=global_batch_size lr=lr loss=val_loss run=config_id outcome=epoch_diverged "
    "warmup=warmup_fraction others=beta2,wd,text_width,total_samples_planned"
)
LANGUAGE = "batch=global_batch_size lr=lr loss=valid_loss run=config_id size=n_param data=n_data"
SOURCES = ("step-law_dense", "step-law_MoE", "small_GPT", "Zhang_2024", "ScAn-Bench_OpenCLIP")
#: Published exponents, by source and question.
PUBLISHED = {
    ("step-law dense", "best_batch_data_exponent"): 0.571,
    ("step-law dense", "best_rate_size_exponent, along the best batch"): -0.713,
    ("step-law dense", "best_rate_data_exponent, along the best batch"): 0.307,
    ("Zhang 2024", "critical_batch_size_exponent, 20 % over batch 256"): 0.47,
}


def keep(folder: Path, source: str, answers: Sequence[Answer]) -> dict[str, Answer]:
    """Write the exponents of a source, with what else its answers say of them."""
    rows = []
    for answer in answers:
        print(answer.text())  # noqa: T201
        ends = [answer.value, answer.low, answer.high]
        if answer.name.endswith("_exponent") and answer.has_answer:
            by = answer.settings.get("by_definition", {"": ends})
            rows += [(f"{answer.name}, {d}".rstrip(", "), *e) for d, e in by.items()]
            if along := answer.settings.get("along_best_batch"):
                rows.append((f"{answer.name}, along the best batch", *along))
    frame = pd.DataFrame(rows, columns=["question", "value", "low", "high"])
    published = [PUBLISHED.get((source, question), np.nan) for question in frame["question"]]
    frame = frame.assign(source=source, published=published)
    if rows:
        name = f"{source.replace(' ', '_')}.csv"
        frame.to_csv(folder / name, index=False, float_format="%.4g")
    return {answer.name: answer for answer in answers}


def thin_ticks(axes: plt.Axes) -> None:
    """Numbers at 1, 2 and 5 of each decade of a logarithmic axis; a grid."""
    for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
        if scale == "log":
            axis.set_minor_formatter(NullFormatter())
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.3g}".replace("e+", "e")))
    axes.grid(alpha=0.3)


def study_step_law(folder: Path, data: Path) -> None:
    bests, figure = [], plt.figure(figsize=(9, 3.6), layout="constrained")
    for place, (source, (name, columns)) in enumerate(STEP_LAW.items(), 1):
        found = keep(folder, source, judge_table(data / name, columns, "batch=2048tokens"))
        table = found["best_batch_size_exponent"].table
        bests.append(table[["size", "data", "batch", "rate"]].assign(source=source))
        axes = figure.add_subplot(1, 2, place)
        powers = regress(
            np.log(table[["data", "size"]].to_numpy()), np.log(table["batch"].to_numpy())
        )
        for mark, (size, rows) in zip(style.ordered_marks(5), table.groupby("size"), strict=False):
            (point,) = axes.plot(rows["data"], rows["batch"], mark.marker, color=mark.color,
                                 label=f"{size / 1e6:,.0f}M")  # fmt: skip
            middle = np.log(table[["data", "size", "batch"]]).mean()
            at = np.log(size) - middle["size"]
            law = middle["batch"] + powers[0].value * (np.log(rows["data"]) - middle["data"])
            axes.plot(rows["data"], np.exp(law + powers[1].value * at), color=point.get_color())
        axes.set(xscale="log", yscale="log", xlabel="data [tokens]", title=source)
        axes.set_ylabel("best batch [tokens]")
        thin_ticks(axes)
        axes.legend(title="parameters", fontsize=7, title_fontsize=7)
    figure.savefig(folder / "step_law.png", dpi=130)
    order = ["source", "size", "data", "batch", "rate"]
    pd.concat(bests)[order].to_csv(BESTS, index=False, float_format="%.5g")


def study_zhang(folder: Path) -> None:
    found = keep(folder, "Zhang 2024", judge_table(folder / "zhang2024.csv"))
    answer = found["critical_batch_size_exponent"]
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for color, name in zip((BLUE, ORANGE, GREEN), answer.settings["by_definition"], strict=True):
        value, low, high = answer.settings["by_definition"][name]
        label = f"{name}: {value:.2f} ({low:.2f} to {high:.2f})"
        axes.plot(answer.table["size"], answer.table[name], "o-", color=color, label=label)
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="critical batch [sequences]")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, title="definition: exponent (95 %)", title_fontsize=7)
    figure.savefig(folder / "zhang.png", dpi=130)


def study_scan_bench(folder: Path) -> None:
    (place,) = find_spec("scan_bench").submodule_search_locations
    clip, language = Path(place) / "vlm/data.csv", Path(place) / "llm/splits"
    keep(folder, "ScAn-Bench OpenCLIP", judge_table(clip, CLIP))
    parts = pd.concat([pd.read_csv(language / f"{part}.csv") for part in ("train", "test")])
    keep(folder, "ScAn-Bench language", judge_table(parts, LANGUAGE))
    runs = read_table(clip, CLIP).runs
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    rates = pd.cut(np.log10(runs["peak_lr"]), np.linspace(-2.75, -1.3, 9))
    lost = runs["outcome"].eq("diverged").groupby([runs["global_batch"], rates], observed=True)
    for mark, (batch, share) in zip(
        style.ordered_marks(4), lost.mean().groupby(level=0), strict=True
    ):
        middles = [10**interval.mid for interval in share.index.get_level_values(1)]
        axes.plot(middles, 100 * share, mark.marker + "-", color=mark.color, label=f"{batch:,}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="diverged [%]")
    thin_ticks(axes)
    axes.legend(title="batch", fontsize=7, title_fontsize=7)
    figure.savefig(folder / "scan_bench.png", dpi=130)


def study_own(folder: Path, results: Path) -> None:
    runs, curves = load_runs(results), load_curves(results)
    measured = with_metric(results, runs, curves, AskedMetric(None, None))
    keep(folder, "small GPT", [*judge_lengths(measured)])


def summarise(folder: Path) -> None:
    """One panel of all exponents of all sources, with the published ones."""
    every = pd.concat([pd.read_csv(path) for path in [folder / f"{name}.csv" for name in SOURCES]])
    every = every[
        ~every["question"].str.endswith("best batch") | (every["question"].str[:4] == "best")
    ]
    every.to_csv(folder / "summary.csv", index=False, float_format="%.4g")
    figure, axes = plt.subplots(figsize=(8.6, 0.25 * len(every) + 1), layout="constrained")
    places = np.arange(len(every))[::-1]
    axes.hlines(places, every["low"], every["high"], color=BLUE)
    axes.plot(every["value"], places, "o", color=BLUE, label="ours, 95 %")
    axes.plot(every["published"], places, "x", color=ORANGE, label="published")
    words = every["source"] + ": " + every["question"].str.replace("_exponent", "")
    words = words.str.replace(r"_(data|size|batch)(,|$)", r" against \1\2", regex=True)
    axes.set_yticks(places, words.str.replace("_", " "), fontsize=7)
    axes.set_xlabel("exponent")
    axes.axvline(0, color=GREY, linewidth=0.7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(folder / "summary.png", dpi=130)


if __name__ == "__main__":
    out, what, *paths = sys.argv[1:]
    studies = {
        "zhang": study_zhang, "scan-bench": study_scan_bench, "step-law": study_step_law,
        "own": study_own, "summary": summarise,
    }  # fmt: skip
    studies[what](Path(out), *map(Path, paths))
