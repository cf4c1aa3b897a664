"""You et al. 2020, The limit of the batch size (arXiv:2006.08517): optimizers up to full batch.

The paper's own batches and recipes are not public in full; the grid is the preset's, 20, 10, 5, 2
and 1 steps per epoch.
"""

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.lines import draw_points
from analysis.figures.points import points, reading_note
from analysis.figures.style import (
    batch_axis,
    legend,
    line_style,
    measure_of,
    new_figure,
    ordered_colors,
    titles,
    value_axis,
)
from analysis.papers.design import IMAGENET_EXAMPLES
from analysis.tables.comparable_runs import studies

EXPERIMENT = "limit2020"
CITATION = "You et al. 2020"

#: The preset's grid on ImageNet: global batches [examples] and optimizers.
BATCHES = (64_000, 128_000, 256_000, 640_000, 1_280_000)
OPTIMIZERS = ("nesterov", "lars", "lamb")


def by_optimizer(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of each optimizer that may be compared: its study with most runs.

    Args:
        runs: rows of the runs table.
    """
    names = runs["optimizer"].astype("object")
    named = runs.assign(optimizer=names.where(names.notna(), "unnamed"))
    largest = [studies(group)[0].runs for _, group in named.groupby("optimizer")]
    return pd.concat(largest, ignore_index=True)


def draw(runs: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Final accuracy against batch, a line per optimizer, and the frame that it draws.

    Args:
        runs: rows of the runs table.
    """
    shown, measure = by_optimizer(runs), measure_of(runs)
    parts = [points(g, measure).assign(optimizer=name) for name, g in shown.groupby("optimizer")]
    frame = pd.concat(parts, ignore_index=True)
    figure, (axes,) = new_figure(7.2, 4.6)
    lines = frame.groupby(["optimizer", "warmup_epochs", "lr_rule"])
    for i, ((name, *_), line) in enumerate(lines):
        color = ordered_colors(lines.ngroups)[i]
        draw_points(axes, line, "global_batch", color=color, style=line_style(i), label=str(name))
    batch_axis(axes, sorted(int(b) for b in frame["global_batch"].unique()))
    value_axis(axes, measure, "last epoch")
    legend(figure, axes)
    first = runs.iloc[0]
    title = f"{CITATION}: optimizers up to the full batch: {first['data']}, {first['model']}"
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    titles(figure, title, about, reading_note(frame))
    return figure, frame


def lacking(runs: pd.DataFrame) -> list[tuple[int, str]]:
    """Points of the preset's grid, on ImageNet or a small twin of it, where no run ended.

    Args:
        runs: rows of the runs table; uses `config_json`, `global_batch`, `num_train_examples`,
            `optimizer`, `outcome`.

    Returns:
        Batch, as on ImageNet, and optimizer.
    """
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    batch = ended["global_batch"].astype(float)
    share = batch * IMAGENET_EXAMPLES / ended["num_train_examples"]
    is_twin = np.array([_is_twin(text) for text in ended["config_json"]], dtype=bool)
    placed = share.where(is_twin, batch)
    there = list(zip(placed, ended["optimizer"], strict=True))
    return [
        (b, optimizer)
        for optimizer in OPTIMIZERS
        for b in BATCHES
        if not any(name == optimizer and abs(x / b - 1) < 0.02 for x, name in there)
    ]


def missing_lines(runs: pd.DataFrame, results: str) -> Iterator[str]:
    """What is lacking, in words, with the commands that run it.

    Args:
        runs: rows of the runs table.
        results: folder that the runs go to.
    """
    gaps = lacking(runs)
    is_small = any(_is_twin(text) for text in runs["config_json"])
    examples = int(runs["num_train_examples"].max()) if is_small else IMAGENET_EXAMPLES
    preset = f"{EXPERIMENT}_small" if is_small else EXPERIMENT
    ending = "" if results == "results" else f" results={results}"
    for optimizer in OPTIMIZERS:
        batches = [b for b, name in gaps if name == optimizer]
        if not batches:
            continue
        ours = [_in_hundreds(b * examples / IMAGENET_EXAMPLES) if is_small else b for b in batches]
        words = ", ".join(f"{b:,}" for b in ours)
        yield (
            f"lacks {optimizer} at batch {words}. To run: python -m sweeper -m "
            f"+experiment={preset} +recipe={preset}_{optimizer} "
            f"batch={','.join(map(str, ours))}{ending}"
        )


def _is_twin(config_json: str | None) -> bool:
    return bool(json.loads(config_json or "{}").get("twin_of"))


def _in_hundreds(batch: float) -> int:
    return round(batch / 100) * 100
