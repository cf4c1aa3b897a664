"""Papers' claims judged on the runs, after the checks that come before any statistics."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
import pandas as pd

from analysis.papers import NAMES, PAPERS, limit2020
from analysis.papers.claim import (
    LACKING,
    NOT_TESTED,
    PLACE,
    REFUSED,
    Claim,
    Verdict,
    judge_claim,
    lacking_metric,
    number_sessions,
    point_masks,
    runs_about,
    scale_of,
    settle_verdicts,
)
from analysis.papers.paper import nearest_runs, place_runs
from analysis.stats.answer import Answer
from analysis.stats.contrasts import ONE_SIDED
from analysis.tables.comparable_runs import AXES, ComparableRuns, group_comparable
from analysis.tables.validity import ARM, describe_confounds, same_arms, upper_edges
from analysis.tables.which_runs import ended_runs
from sweeper.spec.sentences import several

_SEED = 20210801


@dataclass(frozen=True, slots=True)
class Judged:
    """The claims of a paper and what the runs say of them.

    Attributes:
        paper: as on the command line.
        citation: for headings.
        compared: the runs that were judged.
        verdicts: on each claim.
        num_runs: how many there were, comparable or not.
        is_asked: whether all points of a claim were run, with whatever other settings.
    """

    paper: str
    citation: str
    compared: ComparableRuns
    verdicts: Sequence[Verdict]
    num_runs: int
    is_asked: bool

    @property
    def heading(self) -> str:
        """Whose claims they are, and on what they were judged."""
        own = len(self.compared.runs)
        of_all = "" if own == self.num_runs else f"{own} of {several(self.num_runs, 'run')}: "
        text = f"{self.citation}, judged on {of_all}{self.compared.title}."
        text += f" {self.compared.about}." if self.compared.about else ""
        if self.compared.runs["twin_of"].notna().any():
            text += " A small twin: claims are stated in the paper's numbers."
        return text


def judge_all(runs: pd.DataFrame, curves: pd.DataFrame) -> list[Judged]:
    """Judge the claims of papers that have a claim at whose points there are runs."""
    judged = [judge_paper(name, runs, curves) for name in NAMES]
    return [j for j in judged if j.is_asked]


def judge_paper(name: str, runs: pd.DataFrame, curves: pd.DataFrame) -> Judged:
    """Judge the claims of a paper on the comparable runs nearest to its grid."""
    runs = number_sessions(runs)
    rng = np.random.default_rng(_SEED)
    if name == limit2020.NAME:
        shown, verdicts = limit2020.judge_claims(runs, curves, rng)
        comparable = shown if len(shown) else runs
        compared = group_comparable(comparable, (*AXES, *limit2020.RECIPE))[0]
        is_asked = any(verdict.num_seeds for verdict in verdicts)
        return Judged(name, limit2020.CITATION, compared, verdicts, len(runs), is_asked)
    paper = PAPERS[name]
    compared = nearest_runs(runs, paper)
    placed = place_runs(compared.runs, paper)
    is_there = paper.is_protocol_of(compared.runs)
    verdicts: list[Verdict] = []
    for claim in paper.claims:
        lacks = lacking_metric(compared.runs, claim.metric) or claim.only_there * (not is_there)
        blank = Verdict(text=claim.text, where=claim.where, verdict=NOT_TESTED, why=lacks)
        verdicts.append(blank if lacks else _judge_valid(claim, placed, rng, len(paper.claims)))
    everywhere = ended_runs(place_runs(runs, paper))
    is_asked = any(
        all(here.any() for here in point_masks(everywhere, claim.points)) for claim in paper.claims
    )
    return Judged(name, paper.citation, compared, settle_verdicts(verdicts), len(runs), is_asked)


def verdict_table(judged: Sequence[Judged]) -> pd.DataFrame:
    """One row per claim: the paper, and the fields of `Verdict`."""
    names = ["paper", *(field.name for field in fields(Verdict))]
    rows = [{"paper": j.paper, **asdict(v)} for j in judged for v in j.verdicts]
    return pd.DataFrame(rows, columns=names)


def verdict_lines(judged: Judged) -> list[tuple[str, str]]:
    """Each verdict in words; a single line for all claims on what these runs do not record."""
    counts = Counter(v.why for v in judged.verdicts if v.why.startswith(LACKING))
    family = sum(not np.isnan(v.p) for v in judged.verdicts)
    shown = [
        (v.verdict, describe_verdict(v, family)) for v in judged.verdicts if v.why not in counts
    ]
    folded = [f"{n} claim{'s' * (n > 1)}: {why}" for why, n in counts.items()]
    return [*shown, *((NOT_TESTED, words) for words in folded)]


def describe_verdict(verdict: Verdict, family: int = 1) -> str:
    """A verdict as a line: the claim, effect, interval, seeds, and what would decide it.

    `family` is how many of the paper's claims were tested.
    """
    scale, unit = scale_of(verdict.unit)
    parts = [f"{verdict.text} ({verdict.where})"]
    if not np.isnan(verdict.effect) and not np.isinf([verdict.low, verdict.high]).all():
        sign, words = 1.0, f"effect {scale * verdict.effect:.3g} {unit}"
        if verdict.first:
            sign, more = (-1.0, "lower") if verdict.effect < 0 else (1.0, "higher")
            both = (
                re.findall(r"(?:batch |warmup )?\S+", n) for n in (verdict.first, verdict.second)
            )
            differing = [pair for pair in zip(*both, strict=False) if pair[0] != pair[1]]
            first, second = (" ".join(part) for part in zip(*differing, strict=True))
            words = f"{first}: {scale * abs(verdict.effect):.3g} {unit} {more} than {second}"
        if not np.isnan(verdict.low):
            low, high = sorted((sign * scale * verdict.low, sign * scale * verdict.high))
            words += f" (95 %: {low:.3g} to {high:.3g})"
        if verdict.p <= ONE_SIDED < verdict.p_corrected:
            words += f", which would count alone but not among {several(family, 'claim')}"
        parts.append(words)
    parts += [f"seeds: {verdict.num_seeds}"] if verdict.num_seeds else []
    if not np.isnan(verdict.p):
        corrected = f"{verdict.p_corrected:.2g} corrected for {several(family, 'claim')}"
        corrected += f" and {verdict.num_looks} looks" if verdict.num_looks > 1 else ""
        parts.append(f"p = {verdict.p:.2g}, {corrected} (one-sided, {ONE_SIDED:g} decides)")
    return "; ".join(filter(None, [*parts, _describe_seeds(verdict), verdict.why]))


def _describe_seeds(verdict: Verdict) -> str:
    """The seeds with which a verdict would be decided; empty if that is not known."""
    if verdict.seeds_needed <= 0:
        return ""
    scale, unit = scale_of(verdict.unit)
    about = "1,000 or more" if verdict.seeds_needed >= 1000 else f"about {verdict.seeds_needed}"
    amount = f"{scale * verdict.seeds_for:.3g} {unit}"
    return f"with {about} seeds per point {amount} would be decided 4 times in 5"


def claim_answers(judged: Judged) -> Iterator[Answer]:
    """Each claim as a question; the effect is as stated, in the unit of the metric."""
    family = sum(not np.isnan(v.p) for v in judged.verdicts)
    for v in judged.verdicts:
        yield Answer(
            name="claim",
            question=v.text,
            words=f"{v.verdict}: {describe_verdict(v, family)}",
            value=v.effect, low=v.low, high=v.high, unit=v.unit,
            settings={
                "paper": judged.paper, "where": v.where, "verdict": v.verdict, "p": v.p,
                "p_corrected": v.p_corrected, "seeds": v.num_seeds,
            },
            next=(_describe_seeds(v) or v.why) if v.is_open else "",
            is_answered=not v.is_open,
        )  # fmt: skip


def _judge_valid(
    claim: Claim, placed: pd.DataFrame, rng: np.random.Generator, num_claims: int
) -> Verdict:
    """A verdict, or why there can be none."""
    verdict = judge_claim(claim, placed, rng, num_claims)
    why = _refusal(claim, runs_about(claim, placed))
    if not why or not verdict.num_seeds:
        return verdict
    return replace(verdict, verdict=REFUSED, p=np.nan, seeds_needed=-1, why=why)


def _refusal(claim: Claim, ours: pd.DataFrame) -> str:
    """Why a claim cannot be judged: arms that are the same, an optimum that is not bracketed."""
    if groups := same_arms(ours):
        same = groups[0]
        differing = [i for i in range(len(ARM)) if len({arm[i] for arm in same}) > 1]
        arms = [", ".join(f"{ARM[i]} {arm[i]}" for i in differing) for arm in same]
        return f"identical learning rates at every step of {' and '.join(arms)}"
    if found := describe_confounds(ended_runs(ours), PLACE):
        return found
    if claim.contrasts is None and (edges := upper_edges(ours)):
        batches = " and ".join(f"{batch:,}" for batch, _, _ in edges)
        return f"the best warmup at batch {batches} is the longest tried; try longer ones"
    return ""
