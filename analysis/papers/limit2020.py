"""You et al. 2020, The limit of the batch size (arXiv:2006.08517): optimizers up to full batch.

The paper's batches, recipes and numbers are not public in full; the grid is the preset's, 20, 10,
5, 2 and 1 steps per epoch. The claims are those of the abstract; the baseline is Nesterov's
momentum under the same schedule, as Nado et al. 2021 (arXiv:2102.06356) ask for.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.papers.claim import (
    CONTRADICTED,
    NOT_TESTED,
    REFUSED,
    REPRODUCED,
    UNDECIDED,
    Verdict,
    judge_arms,
    lacking_metric,
    settle_verdicts,
)
from analysis.stats.contrasts import Contrasts
from analysis.stats.laws import constant_rate, diffusion
from analysis.tables.comparable_runs import AXES, group_comparable
from analysis.tables.validity import describe_confounds
from analysis.tables.which_runs import ended_runs

NAME = "limit2020"
CITATION = "You et al. 2020"

BASELINE = "nesterov"

#: Keys of the config that a recipe chooses.
RECIPE = ("optimizer", "base_lr", "base_batch", "schedule", "warmup_start")

_GAIN = "At the largest batch the best recipe beats the baseline (by 18 points there)"
_DRIFT = "The distance from the start contradicts ultra-slow diffusion"


def largest_group_by_optimizer(runs: pd.DataFrame) -> pd.DataFrame:
    """Each optimizer's largest comparable group, among runs that differ only in their recipe.

    Of several such sets, that with the most optimizers is used.
    """
    names = runs["optimizer"].astype("object")
    named = runs.assign(optimizer=names.where(names.notna(), "unnamed"))
    alike = group_comparable(named, (*AXES, *RECIPE))
    most = max(alike, key=lambda group: group.runs["optimizer"].nunique()).runs
    largest = [group_comparable(group)[0].runs for _, group in most.groupby("optimizer")]
    return pd.concat(largest, ignore_index=True)


def judge_claims(
    runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, list[Verdict]]:
    """Judge the two statements of the abstract.

    Returns:
        The runs that may be compared, and the verdicts.
    """
    shown = ended_runs(largest_group_by_optimizer(runs))
    arms = arms_at_largest_batch(shown)
    if not arms:
        why = "runs of two or more optimizers at one batch are needed"
        return shown, [Verdict(text=t, where="abstract", why=why) for t in (_GAIN, _DRIFT)]
    return shown, settle_verdicts([_judge_gain(arms, rng), _judge_drift(arms, curves, rng)])


def arms_at_largest_batch(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The runs of the largest batch with two or more optimizers, by optimizer; the baseline first.

    Empty if there is no such batch.
    """
    shared = runs.groupby("global_batch")["optimizer"].nunique()
    largest = runs[runs["global_batch"] == shared[shared > 1].index.max()]
    arms = {str(name): arm for name, arm in largest.groupby("optimizer")}
    return {name: arms[name] for name in sorted(arms, key=lambda name: (name != BASELINE, name))}


def gains(num_arms: int) -> Contrasts:
    """What the best of the others gains over the first."""
    others = [(i, 0) for i in range(1, num_arms)]
    return Contrasts.pairs(*others, num_arms=num_arms, is_any=True)


def _judge_gain(arms: Mapping[str, pd.DataFrame], rng: np.random.Generator) -> Verdict:
    runs = pd.concat([arms[name] for name in sorted(arms)])
    where = f"abstract; batch {int(runs['global_batch'].iloc[0]):,}"
    why = lacking_metric(runs)
    if not why and BASELINE not in arms:
        why = f"optimizer={BASELINE} and another are needed at one batch"
    if why:
        return Verdict(text=_GAIN, where=where, verdict=NOT_TESTED, why=why)
    if why := describe_confounds(runs, ["optimizer"]):
        return Verdict(text=_GAIN, where=where, verdict=REFUSED, why=why)
    blank = Verdict(text=_GAIN, where=where)
    return judge_arms(gains(len(arms)), arms, ["optimizer"], blank, rng, num_claims=2)


def _judge_drift(
    arms: Mapping[str, pd.DataFrame], curves: pd.DataFrame, rng: np.random.Generator
) -> Verdict:
    blank = Verdict(text=_DRIFT, where="abstract")
    series = [constant_rate(arms[name], curves) for name in sorted(arms)]
    fits = [diffusion(distances, rng) for distances in series if len(distances)]
    if not fits:
        why = "no run has a recorded distance over six epochs of one learning rate"
        return replace(blank, verdict=NOT_TESTED, why=why)
    found = {fit.verdict for fit in fits}
    law = fits[0].verdict if len(found) == 1 else ""
    verdicts = {"power law": REPRODUCED, "ultra-slow": CONTRADICTED}
    power, nan = fits[0].power, np.nan
    ends = (power.value, power.low, power.high) if law == "power law" else (nan, nan, nan)
    return replace(
        blank,
        verdict=verdicts.get(law, UNDECIDED),
        p=max(fit.p_value(law) for fit in fits) if law in verdicts else np.nan,
        **dict(zip(("effect", "low", "high"), ends, strict=True)),
        unit="exponent",
        num_seeds=min(fit.power.num_seeds for fit in fits),
        why="; ".join(sorted(found)),
    )
