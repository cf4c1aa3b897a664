"""A paper's claims judged on the runs, after the checks that come before any statistics."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from analysis.claims.mccord2021 import BELOW_REFERENCE, CLAIMS
from analysis.claims.preflight import ARM, preflight, same_arms
from analysis.claims.verdict import UNDECIDED, Claim, Verdict, judge
from analysis.paper import PAPERS, best_study
from analysis.paper.design import in_paper_numbers
from analysis.paper.draw import is_same_protocol
from analysis.studies import Study

__all__ = ["Study", "in_words", "judge_all", "preflight", "table"]

_SEED = 20210801


def judge_all(runs: pd.DataFrame) -> tuple[Study, list[Verdict]]:
    """Judge the claims of McCord & Dash 2021 on the study nearest to their grid.

    Args:
        runs: one row per run.

    Returns:
        The study, and a verdict for each claim.
    """
    paper = PAPERS["mccord2021"]
    study = best_study(runs, paper)
    placed = in_paper_numbers(study.runs, paper)
    rng = np.random.default_rng(_SEED)
    claims = list(CLAIMS)
    verdicts = [_refused_if_same(claim, judge(claim, placed, rng), placed) for claim in claims]
    if is_same_protocol(study.runs, paper.epochs):
        return study, [*verdicts, judge(BELOW_REFERENCE, placed, rng)]
    why = "75.3 % is of ImageNet, ResNet-50 and 90 epochs; these runs are of something else"
    blank = judge(BELOW_REFERENCE, placed.iloc[:0], rng)
    return study, [*verdicts, replace(blank, why=why)]


def table(verdicts: list[Verdict]) -> pd.DataFrame:
    """One row per claim, with the fields of `Verdict`.

    Args:
        verdicts: as `judge_all` returns them.
    """
    return pd.DataFrame([asdict(verdict) for verdict in verdicts])


def in_words(verdict: Verdict) -> str:
    """A verdict as a line: the claim, effect, interval, seeds, and what would decide it.

    Args:
        verdict: as `judge_all` returns it.
    """
    parts = [f"{verdict.text} ({verdict.where})"]
    if not np.isnan(verdict.effect):
        parts.append(_effect_words(verdict))
    parts.append(f"seeds: {verdict.num_seeds}")
    if verdict.seeds_needed > 0:
        about = "1,000 or more" if verdict.seeds_needed >= 1000 else f"about {verdict.seeds_needed}"
        parts.append(f"{about} seeds a point would decide")
    return "; ".join([*parts, verdict.why])


def _effect_words(verdict: Verdict) -> str:
    scale, unit = (100, "points") if verdict.unit == "accuracy" else (1, verdict.unit)
    value = f"effect {scale * verdict.effect:.3g} {unit}"
    if np.isnan(verdict.low):
        return value
    return f"{value} (95 %: {scale * verdict.low:.3g} to {scale * verdict.high:.3g})"


def _refused_if_same(claim: Claim, verdict: Verdict, placed: pd.DataFrame) -> Verdict:
    """Take a verdict back if arms that it compares were in truth the same."""
    keys = {(p.batch, float(p.warmup), p.rule) for p in claim.points}
    is_ours = [
        key in keys
        for key in zip(
            placed["paper_batch"], placed["paper_warmup"], placed["lr_rule"], strict=True
        )
    ]
    groups = same_arms(placed[pd.Series(is_ours, index=placed.index, dtype=bool)])
    if not groups:
        return verdict
    why = (
        f"refused: identical learning rates at every step of {' and '.join(_told_apart(groups[0]))}"
    )
    return replace(verdict, verdict=UNDECIDED, seeds_needed=-1, why=why)


def _told_apart(arms: tuple[tuple[object, ...], ...]) -> list[str]:
    """Each arm by the columns in which it was said to differ from the others."""
    differing = [i for i in range(len(ARM)) if len({arm[i] for arm in arms}) > 1]
    return [", ".join(f"{ARM[i]} {arm[i]}" for i in differing) for arm in arms]
