"""What the abstract of You et al. 2020 (arXiv:2006.08517) states, judged on optimizers' runs.

Its recipes and numbers are not public in full. The baseline here is Nesterov's momentum under the
same schedule, as Nado et al. 2021 (arXiv:2102.06356) ask for.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.papers.limit2020 import by_optimizer
from analysis.papers.verdict import (
    CONTRADICTED,
    REPRODUCED,
    UNDECIDED,
    Verdict,
    judge_positive,
    undecided,
)
from analysis.stats.diffusion import Diffusion, constant_rate, diffusion
from analysis.stats.replicates import Array

BASELINE = "nesterov"

_GAIN = "At the largest batch the best recipe beats the baseline (by 18 points there)"
_DRIFT = "The distance from the start contradicts ultra-slow diffusion"


def judged(
    runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, list[Verdict]]:
    """Judge the two statements.

    Args:
        runs: one row per run.
        curves: their curves.
        rng: of the bootstraps.

    Returns:
        The runs that may be compared, and the verdicts.
    """
    shown = by_optimizer(runs)
    shared = shown.groupby("global_batch")["optimizer"].nunique()
    batches = shared[shared > 1].index
    if not len(batches):
        why = "runs of two or more optimizers at one batch are needed"
        blanks = [undecided(text, where="abstract", why=why) for text in (_GAIN, _DRIFT)]
        return shown, blanks
    at_largest = shown[shown["global_batch"] == batches.max()]
    return shown, [_gain(at_largest, rng), _drift(at_largest, curves, rng)]


def _gain(runs: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    value = ended["val_accuracy"].where(ended["outcome"] == "finished", 0.0)
    groups = value.groupby(ended["optimizer"])
    values = {str(name): group.dropna().to_numpy(dtype=float) for name, group in groups}
    blank = undecided(_GAIN, where=f"abstract; batch {int(runs['global_batch'].iloc[0]):,}", why="")
    if BASELINE not in values or len(values) < 2:
        return replace(blank, why=f"optimizer={BASELINE} and another are needed at one batch")
    ordered = [values.pop(BASELINE), *values.values()]
    blank = replace(blank, num_seeds=min(len(v) for v in ordered))
    return judge_positive(ordered, _best_minus_first, blank, rng)


def _best_minus_first(means: Array) -> Array:
    return means[:, 1:].max(axis=1) - means[:, 0]


def _drift(runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    blank = undecided(_DRIFT, where="abstract", why="")
    fits: list[Diffusion] = []
    for _, group in runs.groupby("optimizer"):
        series = constant_rate(group, curves)
        if len(series):
            fits.append(diffusion(series, rng))
    if not fits:
        why = "no run has a recorded distance over six epochs of one learning rate"
        return replace(blank, why=why)
    return _of_fits(fits, blank)


def _of_fits(fits: Sequence[Diffusion], blank: Verdict) -> Verdict:
    found = {fit.verdict for fit in fits}
    verdict = UNDECIDED
    if found == {"power law"}:
        verdict = REPRODUCED
    elif found == {"ultra-slow"}:
        verdict = CONTRADICTED
    power = fits[0].power
    return replace(
        blank,
        verdict=verdict,
        effect=power.value,
        low=power.low,
        high=power.high,
        unit="exponent",
        num_seeds=min(fit.power.num_seeds for fit in fits),
        why="; ".join(sorted(found)),
    )
