"""You et al. 2020, The limit of the batch size (arXiv:2006.08517): optimizers up to full batch.

The paper's own batches and recipes are not public in full; the grid is the preset's, 20, 10, 5, 2
and 1 steps per epoch.
"""

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.points import points, reading_note
from analysis.figures.style import (
    batch_axis,
    legend,
    line_style,
    new_figure,
    ordered_colors,
    percent_axis,
    titles,
)
from analysis.studies import studies

EXPERIMENT = "limit2020"


def by_optimizer(runs: pd.DataFrame) -> pd.DataFrame:
    """Final accuracy against batch for each optimizer.

    Args:
        runs: rows of the runs table.

    Returns:
        As `points`, with `optimizer`; of each optimizer the study with most runs.
    """
    frames: list[pd.DataFrame] = []
    for optimizer, group in runs.groupby("optimizer"):
        largest = studies(group)[0]
        frames.append(points(largest.runs).assign(optimizer=optimizer))
    return pd.concat(frames, ignore_index=True)


def draw(runs: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure of `by_optimizer`, and its frame.

    Args:
        runs: rows of the runs table.
    """
    frame = by_optimizer(runs)
    figure, (axes,) = new_figure(7.2, 4.6)
    names = sorted(frame["optimizer"].unique())
    for i, (name, color) in enumerate(zip(names, ordered_colors(len(names)), strict=True)):
        line = frame[frame["optimizer"] == name].sort_values("global_batch")
        axes.plot(
            line["global_batch"], line["mean"], line_style(i), color=color, marker="o", label=name
        )
        axes.fill_between(line["global_batch"], line["low"], line["high"], color=color, alpha=0.18)
    batch_axis(axes, sorted(int(b) for b in frame["global_batch"].unique()))
    percent_axis(axes, "validation accuracy, last epoch")
    legend(figure, axes)
    first = runs.iloc[0]
    title = f"You et al. 2020: optimizers up to the full batch: {first['data']}, {first['model']}"
    titles(figure, title, str(first["data_about"] or ""), reading_note(frame))
    return figure, frame
