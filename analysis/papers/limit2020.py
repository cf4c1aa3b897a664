"""You et al. 2020, The limit of the batch size (arXiv:2006.08517): optimizers up to full batch.

The paper's batches, recipes and numbers are not public in full; the grid is the preset's, 20, 10,
5, 2 and 1 steps per epoch. The claims are those of the abstract; the baseline is Nesterov's
momentum under the same schedule, as Nado et al. 2021 (arXiv:2102.06356) ask for.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.papers.claim import (
    CONTRADICTED,
    REPRODUCED,
    UNDECIDED,
    Verdict,
    judge_contrasts,
    lacking_metric,
    settle,
    values_of,
)
from analysis.papers.paper import batch_on_imagenet, nearest_batch
from analysis.stats.contrasts import Contrasts
from analysis.stats.laws import constant_rate, diffusion
from analysis.tables.comparable_runs import AXES, group_comparable
from analysis.tables.validity import confounds
from analysis.tables.which_runs import ended_runs

NAME = EXPERIMENT = "limit2020"
CITATION = "You et al. 2020"

#: The preset's grid on ImageNet: global batches [examples] and optimizers.
BATCHES = (64_000, 128_000, 256_000, 640_000, 1_280_000)
OPTIMIZERS = ("nesterov", "lars", "lamb")
BASELINE = "nesterov"

#: Keys of the config that a recipe chooses.
RECIPE = ("optimizer", "base_lr", "base_batch", "schedule", "warmup_start")

_GAIN = "At the largest batch the best recipe beats the baseline (by 18 points there)"
_DRIFT = "The distance from the start contradicts ultra-slow diffusion"


def by_optimizer(runs: pd.DataFrame) -> pd.DataFrame:
    """Each optimizer's largest comparable group, among runs that differ only in their recipe.

    Of several such sets, that with the most optimizers is used.
    """
    names = runs["optimizer"].astype("object")
    named = runs.assign(optimizer=names.where(names.notna(), "unnamed"))
    alike = group_comparable(named, (*AXES, *RECIPE))
    most = max(alike, key=lambda group: group.runs["optimizer"].nunique()).runs
    largest = [group_comparable(group)[0].runs for _, group in most.groupby("optimizer")]
    return pd.concat(largest, ignore_index=True)


def missing_points(runs: pd.DataFrame) -> list[tuple[int, str]]:
    """Points of the preset's grid, on ImageNet or a small twin of it, where no run ended.

    Returns:
        Batch, as on ImageNet, and optimizer.
    """
    runs = ended_runs(runs)
    placed = [nearest_batch(batch, BATCHES) for batch in batch_on_imagenet(runs)]
    there = set(zip(placed, runs["optimizer"], strict=True))
    return [(b, name) for name in OPTIMIZERS for b in BATCHES if (b, name) not in there]


def judge_claims(
    runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, list[Verdict]]:
    """Judge the two statements of the abstract.

    Returns:
        The runs that may be compared, and the verdicts.
    """
    shown = ended_runs(by_optimizer(runs))
    at_largest = at_largest_batch(shown)
    if not len(at_largest):
        why = "runs of two or more optimizers at one batch are needed"
        return shown, [Verdict(text=t, where="abstract", why=why) for t in (_GAIN, _DRIFT)]
    return shown, settle([_judge_gain(at_largest, rng), _judge_drift(at_largest, curves, rng)])


def at_largest_batch(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the largest batch with two or more optimizers; none if there is no such batch."""
    shared = runs.groupby("global_batch")["optimizer"].nunique()
    return runs[runs["global_batch"] == shared[shared > 1].index.max()]


def baseline_first(names: Iterable[str]) -> list[str]:
    """The optimizers with the baseline as the first."""
    return [BASELINE, *(str(name) for name in names if name != BASELINE)]


def gains(num_arms: int) -> Contrasts:
    """What the best of the others gains over the first."""
    others = [(i, 0) for i in range(1, num_arms)]
    return Contrasts.pairs(*others, num_arms=num_arms, is_any=True)


def _judge_gain(runs: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    where = f"abstract; batch {int(runs['global_batch'].iloc[0]):,}"
    if why := lacking_metric(runs):
        return Verdict(text=_GAIN, where=where, why=why)
    names = runs["optimizer"].unique()
    if BASELINE not in names or len(names) < 2:
        why = f"optimizer={BASELINE} and another are needed at one batch"
        return Verdict(text=_GAIN, where=where, why=why)
    if found := confounds(runs, ["optimizer"]):
        why = f"refused: the arms differ in more than the setting in question: {'; '.join(found)}"
        return Verdict(text=_GAIN, where=where, why=why)
    ordered = baseline_first(names)
    values = values_of([runs[runs["optimizer"] == name] for name in ordered], ordered)
    blank = Verdict(text=_GAIN, where=where, num_seeds=values.num_seeds)
    return judge_contrasts(gains(len(ordered)), values, blank, rng, num_claims=2)


def _judge_drift(runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    blank = Verdict(text=_DRIFT, where="abstract")
    series = [constant_rate(group, curves) for _, group in runs.groupby("optimizer")]
    fits = [diffusion(distances, rng) for distances in series if len(distances)]
    if not fits:
        why = "no run has a recorded distance over six epochs of one learning rate"
        return replace(blank, why=why)
    found = {fit.verdict for fit in fits}
    law = fits[0].verdict if len(found) == 1 else ""
    verdicts = {"power law": REPRODUCED, "ultra-slow": CONTRADICTED}
    power = fits[0].power
    return replace(
        blank,
        verdict=verdicts.get(law, UNDECIDED),
        p=max(fit.p_value(law) for fit in fits) if law in verdicts else np.nan,
        effect=power.value,
        low=power.low,
        high=power.high,
        unit="exponent",
        num_seeds=min(fit.power.num_seeds for fit in fits),
        why="; ".join(sorted(found)),
    )
