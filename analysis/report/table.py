"""The metric at every point as a table for a paper: LaTeX, Markdown and CSV, with a caption."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.figures import style
from analysis.figures.points import POINT, points
from analysis.stats.best_setting import BestSettings, along_best
from analysis.stats.replicates import format_share, validation_size
from analysis.tables.comparable_runs import (
    ComparableRuns,
    distinct_configs,
    example_unit,
    file_name,
    group_comparable,
    takes_frame,
    warmup_unit,
    with_known_spans,
)
from analysis.tables.metric import ACCURACY, Measured, Metric
from analysis.tables.validity import doubts
from sweeper.spec.identity import words

_HEADS = {"lr_rule": "lr rule", "global_batch": "batch", "warmup_epochs": "warmup",
          "peak_lr": "peak rate"}  # fmt: skip

_FORMATS = {"lr_rule": "{}", "global_batch": "{:,}", "peak_lr": "{:.3g}"}

#: A longer LaTeX table is broken over pages, which two-column layouts do not allow [rows].
_MOST_ROWS = 45

_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
        "[": "{[}", "]": "{]}", "±": r"$\pm$", "†": r"\textdagger{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"}}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table with its numbers and words; a notebook shows it.

    Attributes:
        frame: a row per point, as in `points`, in the units of the columns.
        cells: the same as text: heads, then rows.
        caption: what is in it, and how to read it.
        settings: what was held fixed, which stands beside the table.
    """

    frame: pd.DataFrame
    cells: Sequence[Sequence[str]]
    caption: str
    settings: str = ""

    def markdown(self) -> str:
        """A table of GitHub's Markdown; numbers stand on the right."""
        heads, *rows = [[_escape_markdown(cell) for cell in row] for row in self.cells]
        lines = [heads, ["---:"] * len(heads), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        texts = [_escape_markdown(self.caption), table, _escape_markdown(self.settings)]
        return "\n\n".join(filter(None, texts)) + "\n"

    def latex(self) -> str:
        """A table for the package booktabs; a long table is broken over pages by longtable."""
        heads, *rows = [" & ".join(map(_escape_latex, row)) + r" \\" for row in self.cells]
        caption = rf"\caption{{{_escape_latex(self.caption)}}}"
        beside = f"% {self.settings}"
        columns = f"{{@{{}}{'r' * len(self.cells[0])}@{{}}}}"
        head, foot = ["\\toprule", heads, "\\midrule"], "\\bottomrule"
        if len(rows) > _MOST_ROWS:
            lines = [rf"\begin{{longtable}}{columns}", rf"{caption} \\", *head, r"\endfirsthead",
                     *head, r"\endhead", foot, r"\endfoot", *rows, r"\end{longtable}"]  # fmt: skip
            return "\n".join([beside, "% \\usepackage{booktabs,longtable}", *lines, ""])
        lines = [r"\begin{table}", r"\centering", caption, rf"\begin{{tabular}}{columns}",
                 *head, *rows, foot, r"\end{tabular}", r"\end{table}"]  # fmt: skip
        return "\n".join([beside, "% \\usepackage{booktabs}", *lines, ""])

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write it as LaTeX, Markdown and CSV; the folder is made if absent."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"tex": self.latex(), "md": self.markdown(), "csv": self.frame.to_csv(index=False)}
        paths = {folder / f"{name}.{ending}": text for ending, text in texts.items()}
        for path, text in paths.items():
            path.write_text(text, encoding="utf-8")
        return [*paths]


def write_tables(measured: Measured, folder: Path) -> Iterator[tuple[PaperTable, list[Path]]]:
    """A table of each batch at its best setting, if groups differ in it; of every group; files."""
    word = file_name(measured.metric.word)
    if best := along_best(measured.runs_with_metric, measured.metric):
        table = paper_table(best[0], measured.metric, best=best[1])
        yield table, table.save(folder, f"{word}_table_best")
    for compared in group_comparable(measured.runs_with_metric):
        ending = f"-{compared.name}" if compared.name else ""
        table = paper_table(compared, measured.metric)
        yield table, table.save(folder, f"{word}_table{ending}")
        if min(compared.runs[["global_batch", "warmup_epochs"]].nunique()) > 1:
            matrix = matrix_table(compared, measured.metric)
            yield matrix, matrix.save(folder, f"{word}_matrix{ending}")


@takes_frame
def paper_table(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, best: BestSettings | None = None
) -> PaperTable:
    """The metric at the end of training at every batch, warmup and lr rule, or best setting.

    Settings that all points share are in the caption, not in columns.
    """
    by = ["global_batch", *best.columns] if best else ["lr_rule", *POINT[:2]]
    frame = points(compared.runs, metric.name, by).sort_values(by)
    frame["num_missing"] = frame["num_other"] + frame["num_finished"] - frame["values"].map(len)
    columns = _columns(frame, by, metric)
    has_any = {"diverged": "num_diverged", "no result": "num_missing"}
    hidden = {_head(name) for name in by if name != "global_batch" and frame[name].nunique() < 2}
    hidden |= {head for head, name in has_any.items() if not frame[name].any()}
    hidden |= {"95 % interval"} if frame["low"].isna().all() else set()
    shown = {head: cells for head, cells in columns.items() if head not in hidden}
    cells = [[*shown], *map(list, zip(*shown.values(), strict=True))]
    about = f" ({compared.about})" if compared.about else ""
    title = f"{style.title_word(metric)} at the end of training: {compared.title}{about}."
    described = _describe_columns(frame, compared.runs)
    caption = " ".join(
        filter(None, [title, best.caption if best else "", described, doubts(compared.runs)])
    )
    return PaperTable(frame, cells, caption, _describe_fixed(compared.runs))


def matrix_table(compared: ComparableRuns, metric: Metric = ACCURACY) -> PaperTable:
    """The same with a row per batch and lr rule and a column per warmup: mean and half interval."""
    frame = points(compared.runs, metric.name).sort_values(["lr_rule", *POINT[:2]])
    scale, digits = 100 if metric.unit == "%" else 1, _digits(frame, metric)
    lost = frame["num_diverged"] > 0
    seeds = frame["values"].map(len).to_numpy(float)
    # `low` and `high` end at 0 and 100 %, and half an interval does not
    half = stdtrit(seeds - 1, 0.975) * frame["sd"] / np.sqrt(seeds)
    half = half.where(frame["high"].notna())
    frame["cell"] = [
        f"{scale * m:.{digits}f}" + ("" if np.isnan(h) else f" ± {scale * h:.{digits}f}") + "†" * d
        for m, h, d in zip(frame["mean"], half, lost, strict=True)
    ]
    frame["cell"] = frame["cell"].where(frame["mean"].notna(), np.where(lost, "diverged", ""))
    grid = frame.pivot_table("cell", ["lr_rule", "global_batch"], "warmup_epochs", "first")
    heads = ["lr rule", "batch", *(f"warmup {warmup:g}" for warmup in grid)]
    filled = zip(grid.index, grid.fillna("").to_numpy(), strict=True)
    rows = [[rule, f"{batch:,}", *cells] for (rule, batch), cells in filled]
    skip = int(len({row[0] for row in rows}) < 2)
    title = f"{style.title_word(metric)} at the end of training: {compared.title}."
    note = f"Cells: {style.value_label(metric)}, mean over seeds ± half of its 95 % t interval."
    note += " †: without seeds that diverged." * bool(lost.any())
    caption = " ".join(filter(None, [title, note, doubts(compared.runs)]))
    cells = [row[skip:] for row in [heads, *rows]]
    return PaperTable(grid.reset_index(), cells, caption, _describe_fixed(compared.runs))


def _head(name: str) -> str:
    return _HEADS.get(name, name.rpartition(".")[2])


def _columns(frame: pd.DataFrame, by: Sequence[str], metric: Metric) -> dict[str, list[str]]:
    scale = 100 if metric.unit == "%" else 1
    digits = _digits(frame, metric)

    def number(value: float) -> str:
        return "" if pd.isna(value) else f"{scale * value:.{digits}f}"

    lost = zip(frame["num_diverged"], frame["num_finished"], strict=True)
    ends = zip(frame["low"], frame["high"], strict=True)
    return {
        **{_head(name): [*map(_FORMATS.get(name, "{:g}").format, frame[name])] for name in by},
        "n": [f"{len(values)}" for values in frame["values"]],
        style.value_label(metric): [number(mean) for mean in frame["mean"]],
        "95 % interval": [
            "" if pd.isna(low) else f"{number(low)} to {number(high)}" for low, high in ends
        ],
        "diverged": [format_share(gone, gone + left) if gone else "0" for gone, left in lost],
        "no result": [f"{count}" for count in frame["num_missing"]],
    }


def _digits(frame: pd.DataFrame, metric: Metric) -> int:
    """Decimals for two digits of half an interval, or, without any, one of a validation example."""
    scale = 100 if metric.unit == "%" else 1
    error = scale * float(((frame["high"] - frame["low"]) / 2).median())
    if not error > 0:
        size = validation_size(np.concatenate([*frame["values"], []])) if scale == 100 else None
        error = 10 * scale / size if size else float(frame["mean"].abs().max()) / 100
    return max(0, 1 - floor(log10(error))) if error > 0 else 4


def _describe_columns(frame: pd.DataFrame, runs: pd.DataFrame) -> str:
    """How the columns are to be read."""
    seeds = "n: finished seeds, over which are mean and t interval"
    parts = [f"batch in {example_unit(runs)} per step", f"warmup in {warmup_unit(runs)}", seeds]
    if frame["num_finished"].max() < 2:
        parts[-1] = "n: finished seeds; one seed has no interval"
    elif frame.loc[frame["num_finished"] > 1, "low"].isna().any():
        parts.append("no interval where all seeds measured the same")
    if frame["num_diverged"].any():
        parts.append("diverged: share of the runs that ended, with Wilson's 95 % interval; not in "
                     "the mean")  # fmt: skip
    if frame["num_missing"].any():
        parts.append("no result: out of memory, timed out, preempted, failed, or metric not logged")
    return f"Columns: {'; '.join(parts)}."


def _describe_fixed(runs: pd.DataFrame) -> str:
    """The settings that all runs share and that can change a result, as typed."""
    layout = ["micro_batch", "world_size"]
    config, _ = distinct_configs(runs)
    unique = runs.assign(config=config).drop_duplicates(["config", *layout])
    configs = unique[["config_json", *layout]].fillna({"config_json": "{}"}).itertuples(index=False)
    first, *others = [words(with_known_spans(json.loads(text), *of)) for text, *of in configs]
    shared = {
        key: value
        for key, (value, _) in first.items()
        if value != "null" and all(other.get(key, ("",))[0] == value for other in others)
        if key != "seed" or runs["seed"].nunique() < 2
    }
    own = {f"{group}._target_": name for group, name in shared.items()}  # the group names it
    parts = [f"{key}={value}" for key, value in shared.items() if own.get(key) != value]
    return f"Held fixed: {', '.join(parts)}."


def _escape_latex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)
