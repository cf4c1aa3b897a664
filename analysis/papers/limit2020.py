"""You et al. 2020, The limit of the batch size (arXiv:2006.08517): optimizers up to full batch.

The paper's batches, recipes and numbers are not public in full; the grid is the preset's, 20, 10,
5, 2 and 1 steps per epoch. The claims are those of the abstract; the baseline is Nesterov's
momentum under the same schedule, as Nado et al. 2021 (arXiv:2102.06356) ask for.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.figures.lines import draw_points
from analysis.figures.points import points, reading_note
from analysis.papers.claim import (
    CONTRADICTED,
    REPRODUCED,
    UNDECIDED,
    Verdict,
    judge_positive,
    lacking,
    recorded,
    with_diverged,
)
from analysis.papers.grid import ended
from analysis.papers.paper import IMAGENET_EXAMPLES, batch_on_imagenet, nearest_batch
from analysis.stats.diffusion import constant_rate, diffusion
from analysis.stats.replicates import Array
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.metric import ACCURACY, Metric

NAME = EXPERIMENT = "limit2020"
CITATION = "You et al. 2020"

#: The preset's grid on ImageNet: global batches [examples] and optimizers.
BATCHES = (64_000, 128_000, 256_000, 640_000, 1_280_000)
OPTIMIZERS = ("nesterov", "lars", "lamb")
BASELINE = "nesterov"

_GAIN = "At the largest batch the best recipe beats the baseline (by 18 points there)"
_DRIFT = "The distance from the start contradicts ultra-slow diffusion"


def by_optimizer(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each optimizer the largest group of comparable runs."""
    names = runs["optimizer"].astype("object")
    named = runs.assign(optimizer=names.where(names.notna(), "unnamed"))
    largest = [group_comparable(group)[0].runs for _, group in named.groupby("optimizer")]
    return pd.concat(largest, ignore_index=True)


def draw(runs: pd.DataFrame, metric: Metric = ACCURACY) -> tuple[Figure, pd.DataFrame]:
    """The final metric against batch, a line per optimizer, and the frame that it draws."""
    groups = by_optimizer(runs).groupby("optimizer")
    parts = [points(group, metric.name).assign(optimizer=name) for name, group in groups]
    frame = pd.concat(parts, ignore_index=True)
    figure, (axes,) = style.new_figure()
    lines = frame.groupby(["optimizer", "warmup_epochs", "lr_rule"])
    for i, ((name, *_), line) in enumerate(lines):
        color = style.ordered_colors(lines.ngroups)[i]
        draw_points(
            axes, line, "global_batch", color=color, linestyle=style.line_style(i), label=str(name)
        )
    style.batch_axis(axes, sorted(int(b) for b in frame["global_batch"].unique()))
    style.value_axis(axes, metric, "last epoch")
    style.legend(figure, axes)
    first = runs.iloc[0]
    title = f"{CITATION}: optimizers up to the full batch: {first['data']}, {first['model']}"
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    style.titles(figure, title, about, reading_note(frame))
    return figure, frame


def missing_points(runs: pd.DataFrame) -> list[tuple[int, str]]:
    """Points of the preset's grid, on ImageNet or a small twin of it, where no run ended.

    Returns:
        Batch, as on ImageNet, and optimizer.
    """
    runs = ended(runs)
    placed = [nearest_batch(batch, BATCHES) for batch in batch_on_imagenet(runs)]
    there = set(zip(placed, runs["optimizer"], strict=True))
    return [(b, name) for name in OPTIMIZERS for b in BATCHES if (b, name) not in there]


def commands_for_missing(runs: pd.DataFrame, results: str) -> Iterator[str]:
    """What is missing, in words, with the commands that run it."""
    gaps = missing_points(runs)
    is_small = bool(runs["twin_of"].notna().any())
    examples = int(runs["num_train_examples"].max()) if is_small else IMAGENET_EXAMPLES
    preset = f"{EXPERIMENT}_small" if is_small else EXPERIMENT
    ending = "" if results == "results" else f" results={results}"
    for optimizer in OPTIMIZERS:
        batches = [b for b, name in gaps if name == optimizer]
        if is_small:
            batches = [round(b * examples / IMAGENET_EXAMPLES / 100) * 100 for b in batches]
        if batches:
            words = ", ".join(f"{b:,}" for b in batches)
            yield (
                f"lacks {optimizer} at batch {words}. To run: python -m sweeper -m "
                f"+experiment={preset} +recipe={preset}_{optimizer} "
                f"batch={','.join(map(str, batches))}{ending}"
            )


def judge_claims(
    runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, list[Verdict]]:
    """Judge the two statements of the abstract.

    Returns:
        The runs that may be compared, and the verdicts.
    """
    shown = by_optimizer(runs)
    shared = shown.groupby("global_batch")["optimizer"].nunique()
    batches = shared[shared > 1].index
    if not len(batches):
        why = "runs of two or more optimizers at one batch are needed"
        return shown, [Verdict(text=t, where="abstract", why=why) for t in (_GAIN, _DRIFT)]
    at_largest = shown[shown["global_batch"] == batches.max()]
    return shown, [_judge_gain(at_largest, rng), _judge_drift(at_largest, curves, rng)]


def _judge_gain(runs: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    where = f"abstract; batch {int(runs['global_batch'].iloc[0]):,}"
    runs = ended(runs)
    if why := lacking(runs):
        return Verdict(text=_GAIN, where=where, why=why)
    groups = recorded(runs).groupby(runs["optimizer"])
    values = {str(name): group.dropna().to_numpy(dtype=float) for name, group in groups}
    if BASELINE not in values or len(values) < 2:
        why = f"optimizer={BASELINE} and another are needed at one batch"
        return Verdict(text=_GAIN, where=where, why=why)
    ordered = [values.pop(BASELINE), *values.values()]
    blank = Verdict(text=_GAIN, where=where, num_seeds=min(len(v) for v in ordered))
    judged = judge_positive(ordered, _best_minus_first, blank, rng)
    return with_diverged(judged, int((runs["outcome"] == "diverged").sum()))


def _best_minus_first(means: Array) -> Array:
    return means[:, 1:].max(axis=1) - means[:, 0]


def _judge_drift(runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    blank = Verdict(text=_DRIFT, where="abstract")
    series = [constant_rate(group, curves) for _, group in runs.groupby("optimizer")]
    fits = [diffusion(one, rng) for one in series if len(one)]
    if not fits:
        why = "no run has a recorded distance over six epochs of one learning rate"
        return replace(blank, why=why)
    found = {fit.verdict for fit in fits}
    verdicts = {"power law": REPRODUCED, "ultra-slow": CONTRADICTED}
    power = fits[0].power
    return replace(
        blank,
        verdict=verdicts.get(fits[0].verdict, UNDECIDED) if len(found) == 1 else UNDECIDED,
        effect=power.value,
        low=power.low,
        high=power.high,
        unit="exponent",
        num_seeds=min(fit.power.num_seeds for fit in fits),
        why="; ".join(sorted(found)),
    )
