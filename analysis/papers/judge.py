"""Papers' claims judged on the runs, after the checks that come before any statistics."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from analysis.papers import NAMES, PAPERS, limit2020
from analysis.papers.claim import LACKING, UNDECIDED, Claim, Verdict, judge, lacking
from analysis.papers.grid import runs_at
from analysis.papers.paper import nearest_runs, place_runs
from analysis.papers.validity import ARM, at_upper_edge, same_arms
from analysis.tables.comparable_runs import ComparableRuns, group_comparable

_SEED = 20210801


@dataclass(frozen=True, slots=True)
class Judged:
    """The claims of a paper and what the runs say of them.

    Attributes:
        paper: as on the command line.
        citation: for headings.
        compared: the runs that were judged.
        verdicts: one for each claim.
    """

    paper: str
    citation: str
    compared: ComparableRuns
    verdicts: Sequence[Verdict]

    @property
    def heading(self) -> str:
        """Whose claims they are, and on what they were judged."""
        text = f"{self.citation}, judged on {self.compared.title}."
        text += f" {self.compared.about}." if self.compared.about else ""
        is_twin = self.compared.runs["twin_of"].notna().any()
        return f"{text} A small twin: claims are in the paper's numbers." if is_twin else text


def judge_all(runs: pd.DataFrame, curves: pd.DataFrame) -> list[Judged]:
    """Judge the claims of the papers that the runs speak to; of the first paper if of none."""
    judged = [judge_paper(name, runs, curves) for name in NAMES]
    spoken = [j for j in judged if any(v.num_seeds for v in j.verdicts)]
    return spoken or judged[:1]


def judge_paper(name: str, runs: pd.DataFrame, curves: pd.DataFrame) -> Judged:
    """Judge the claims of one paper on the comparable runs nearest to its grid."""
    rng = np.random.default_rng(_SEED)
    if name == limit2020.NAME:
        shown, verdicts = limit2020.judge_claims(runs, curves, rng)
        compared = replace(group_comparable(shown)[0], runs=shown)
        return Judged(name, limit2020.CITATION, compared, verdicts)
    paper = PAPERS[name]
    compared = nearest_runs(runs, paper)
    placed = place_runs(compared.runs, paper)
    is_there = paper.is_protocol_of(compared.runs)
    verdicts = [
        Verdict(text=claim.text, where=claim.where, why=why)
        if (why := lacking(compared.runs, claim.metric))
        else _judge_valid(claim, placed, rng, is_there=is_there)
        for claim in paper.claims
    ]
    return Judged(name, paper.citation, compared, verdicts)


def table(judged: Sequence[Judged]) -> pd.DataFrame:
    """One row per claim: the paper, and the fields of `Verdict`."""
    return pd.DataFrame([{"paper": j.paper, **asdict(v)} for j in judged for v in j.verdicts])


def lines(judged: Judged) -> list[tuple[str, str]]:
    """Each verdict with its words; one line for all claims about what these runs do not record."""
    counts = Counter(v.why for v in judged.verdicts if v.why.startswith(LACKING))
    shown = [(v.verdict, in_words(v)) for v in judged.verdicts if v.why not in counts]
    folded = [f"{n} claim{'s' * (n > 1)}: {why}" for why, n in counts.items()]
    return [*shown, *((UNDECIDED, words) for words in folded)]


def in_words(verdict: Verdict) -> str:
    """A verdict as a line: the claim, effect, interval, seeds, and what would decide it."""
    parts = [f"{verdict.text} ({verdict.where})"]
    if not np.isnan(verdict.effect):
        parts.append(_effect_words(verdict))
    parts.append(f"seeds: {verdict.num_seeds}")
    if verdict.seeds_needed > 0:
        about = "1,000 or more" if verdict.seeds_needed >= 1000 else f"about {verdict.seeds_needed}"
        parts.append(f"{about} seeds per point would decide")
    return "; ".join([*parts, verdict.why])


def _effect_words(verdict: Verdict) -> str:
    scale, unit = (100, "points") if verdict.unit == "accuracy" else (1, verdict.unit)
    value = f"effect {scale * verdict.effect:.3g} {unit}"
    if np.isnan(verdict.low):
        return value
    return f"{value} (95 %: {scale * verdict.low:.3g} to {scale * verdict.high:.3g})"


def _judge_valid(
    claim: Claim, placed: pd.DataFrame, rng: np.random.Generator, *, is_there: bool
) -> Verdict:
    """A verdict, taken back if arms were in truth the same or an optimum is not bracketed."""
    if claim.only_there:
        blank = Verdict(text=claim.text, where=claim.where, why=claim.only_there)
        return judge(claim, placed, rng) if is_there else blank
    verdict = judge(claim, placed, rng)
    ours = placed[np.any(runs_at(placed, claim.points), axis=0)]
    why = ""
    if groups := same_arms(ours):
        arms = " and ".join(_differences(groups[0]))
        why = f"refused: identical learning rates at every step of {arms}"
    elif claim.is_about_optimum and verdict.num_seeds and (edges := at_upper_edge(ours)):
        batches = " and ".join(f"{batch:,}" for batch, _, _ in edges)
        why = f"refused: the longest warmup tried is the best at batch {batches}; try longer ones"
    return replace(verdict, verdict=UNDECIDED, seeds_needed=-1, why=why) if why else verdict


def _differences(arms: tuple[tuple[object, ...], ...]) -> list[str]:
    """Each arm by the columns in which it was said to differ from the others."""
    differing = [i for i in range(len(ARM)) if len({arm[i] for arm in arms}) > 1]
    return [", ".join(f"{ARM[i]} {arm[i]}" for i in differing) for arm in arms]
