"""Papers' claims judged on the runs, after the checks that come before any statistics."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from analysis.papers import (
    PAPERS,
    best_study,
    goyal2017_claims,
    limit2020_claims,
    mccord2021_claims,
)
from analysis.papers.design import Paper, in_paper_numbers
from analysis.papers.limit2020 import CITATION, EXPERIMENT
from analysis.papers.preflight import ARM, at_upper_edge, preflight, same_arms
from analysis.papers.protocol import is_same_protocol
from analysis.papers.verdict import UNDECIDED, Claim, Verdict, judge, undecided
from analysis.tables.comparable_runs import Study, studies

__all__ = ["Judged", "in_words", "judge_all", "judge_paper", "preflight", "table"]

_SEED = 20210801

#: The claims of each paper whose points are batches, warmups and rules.
_CLAIMS = {"mccord2021": mccord2021_claims.CLAIMS, "goyal2017": goyal2017_claims.CLAIMS}

#: Papers whose claims can be judged; the first is judged on any runs.
NAMES = (*_CLAIMS, EXPERIMENT)


@dataclass(frozen=True, slots=True)
class Judged:
    """The claims of a paper and what the runs say of them.

    Attributes:
        paper: as on the command line.
        citation: for headings.
        study: the runs that were judged.
        verdicts: one for each claim.
    """

    paper: str
    citation: str
    study: Study
    verdicts: Sequence[Verdict]

    @property
    def heading(self) -> str:
        """Whose claims they are, and on what they were judged."""
        text = f"{self.citation}, judged on {self.study.title}."
        text += f" {self.study.about}." if self.study.about else ""
        is_twin = (
            self.study.runs["config_json"].fillna("").str.contains('"twin_of": "', regex=False)
        )
        return f"{text} A small twin: claims are in the paper's numbers." if is_twin.any() else text


def judge_all(runs: pd.DataFrame, curves: pd.DataFrame) -> list[Judged]:
    """Judge the claims of McCord & Dash 2021, and of other papers that the runs speak to.

    Args:
        runs: one row per run.
        curves: one row per run and epoch.
    """
    judged = [judge_paper(name, runs, curves) for name in NAMES]
    spoken = [j for j in judged if any(v.num_seeds for v in j.verdicts)]
    return spoken or judged[:1]


def judge_paper(name: str, runs: pd.DataFrame, curves: pd.DataFrame) -> Judged:
    """Judge the claims of one paper on the study nearest to its grid.

    Args:
        name: one of `NAMES`.
        runs: one row per run.
        curves: one row per run and epoch.
    """
    rng = np.random.default_rng(_SEED)
    if name == EXPERIMENT:
        shown, verdicts = limit2020_claims.judged(runs, curves, rng)
        largest = replace(studies(shown)[0], runs=shown)
        return Judged(name, CITATION, largest, verdicts)
    paper = PAPERS[name]
    study = best_study(runs, paper)
    placed = in_paper_numbers(study.runs, paper)
    verdicts = [_judged(claim, placed, rng) for claim in _CLAIMS[name]]
    if name == "mccord2021":
        verdicts.append(_below_reference(study, placed, paper, rng))
    return Judged(name, paper.citation, study, verdicts)


def table(judged: Sequence[Judged]) -> pd.DataFrame:
    """One row per claim: the paper, and the fields of `Verdict`.

    Args:
        judged: as `judge_all` returns it.
    """
    return pd.DataFrame([{"paper": j.paper, **asdict(v)} for j in judged for v in j.verdicts])


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


def _judged(claim: Claim, placed: pd.DataFrame, rng: np.random.Generator) -> Verdict:
    """A verdict, taken back if arms were in truth the same or an optimum is not bracketed."""
    verdict = judge(claim, placed, rng)
    keys = {(p.batch, float(p.warmup), p.rule) for p in claim.points}
    points = placed[["paper_batch", "paper_warmup", "lr_rule"]].itertuples(index=False, name=None)
    is_ours = pd.Series([key in keys for key in points], index=placed.index, dtype=bool)
    ours = placed[is_ours]
    why = ""
    if groups := same_arms(ours):
        arms = " and ".join(_told_apart(groups[0]))
        why = f"refused: identical learning rates at every step of {arms}"
    elif claim.is_about_optimum and verdict.num_seeds and (edges := at_upper_edge(ours)):
        batches = " and ".join(f"{batch:,}" for batch, _, _ in edges)
        why = f"refused: the longest warmup tried is the best at batch {batches}; try longer ones"
    return replace(verdict, verdict=UNDECIDED, seeds_needed=-1, why=why) if why else verdict


def _below_reference(
    study: Study, placed: pd.DataFrame, paper: Paper, rng: np.random.Generator
) -> Verdict:
    claim = mccord2021_claims.BELOW_REFERENCE
    if is_same_protocol(study.runs, paper.epochs):
        return judge(claim, placed, rng)
    why = "75.3 % is of ImageNet, ResNet-50 and 90 epochs; these runs are of something else"
    return undecided(claim.text, where=claim.where, why=why)


def _told_apart(arms: tuple[tuple[object, ...], ...]) -> list[str]:
    """Each arm by the columns in which it was said to differ from the others."""
    differing = [i for i in range(len(ARM)) if len({arm[i] for arm in arms}) > 1]
    return [", ".join(f"{ARM[i]} {arm[i]}" for i in differing) for arm in arms]
