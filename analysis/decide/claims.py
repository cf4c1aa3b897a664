"""Claims that are not decidable, and what to run for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.decide.arms import (
    Arm,
    config_of,
    differences,
    paper_arms,
    seen,
    values_at,
    with_seeds,
)
from analysis.decide.edges import edges_of_warmup, of_edges
from analysis.decide.expected import (
    UNKNOWN,
    expected_exponent,
    expected_interval,
    fewest_by_rank,
    seeds_for_exponent,
)
from analysis.decide.proposal import Proposal, joined
from analysis.papers import PAPERS, limit2020
from analysis.papers.claim import LACKING, UNDECIDED, Verdict, runs_about
from analysis.papers.grid import Point
from analysis.papers.judge import Judged
from analysis.papers.paper import place_runs
from analysis.stats.contrasts import ONE_SIDED, Contrasts
from analysis.stats.optimum import best_warmups
from analysis.stats.replicates import fixed_rng
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.validity import ARM, same_arms
from analysis.tables.which_runs import ended

#: Seeds with which a point is first judged: with two, an interval says next to nothing.
FEWEST_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClaim:
    """A claim that is not decidable.

    Attributes:
        verdict: so far.
        arms: the points that it is about; none if these runs do not say which.
        contrasts: of the arms; None for a claim about the best warmup's exponent.
        metric: what it is about.
        num_claims: claims of its paper, which share the error rate.
        only_there: why no runs on these data can decide it; else empty.
    """

    verdict: Verdict
    arms: list[Arm]
    contrasts: Contrasts | None
    metric: Metric = ACCURACY
    num_claims: int = 1
    only_there: str = ""

    @property
    def text(self) -> str:
        """The claim and where it stands."""
        return f"{self.verdict.text} ({self.verdict.where})"


def open_claims(judged: Sequence[Judged]) -> Iterator[OpenClaim]:
    """The claims, of papers that the runs speak to, that are not decidable."""
    for of_one in judged:
        if of_one.is_asked:
            yield from _of_paper(of_one) if of_one.paper in PAPERS else _of_limit(of_one)


def _of_paper(judged: Judged) -> Iterator[OpenClaim]:
    paper, runs = PAPERS[judged.paper], judged.compared.runs
    placed = place_runs(runs, paper)
    for claim, verdict in zip(paper.claims, judged.verdicts, strict=True):
        if verdict.verdict == UNDECIDED:
            only_there = claim.only_there and not paper.is_protocol_of(runs)
            about = ended(runs_about(claim, placed))
            seen_at = zip(
                about["paper_batch"], about["paper_warmup"], about["lr_rule"], strict=True
            )
            points = dict.fromkeys([*claim.points, *(Point(*at) for at in seen_at)])
            yield OpenClaim(
                verdict=verdict,
                arms=paper_arms([*points], placed, runs, paper),
                contrasts=claim.contrasts,
                metric=claim.metric,
                num_claims=len(paper.claims),
                only_there=claim.only_there if only_there else "",
            )


def _of_limit(judged: Judged) -> Iterator[OpenClaim]:
    gain, drift = judged.verdicts
    runs = judged.compared.runs
    if gain.verdict == UNDECIDED and gain.num_seeds:
        groups = limit2020.at_largest_batch(runs).groupby("optimizer")
        by_name = {str(name): rows for name, rows in groups}
        arms = [
            Arm(name, by_name[name], config_of(by_name[name].iloc[0]))
            for name in limit2020.baseline_first(by_name)
        ]
        contrasts = limit2020.gains(len(arms))
        yield OpenClaim(verdict=gain, arms=arms, contrasts=contrasts, num_claims=2)
    if drift.verdict == UNDECIDED:
        yield OpenClaim(verdict=drift, arms=[], contrasts=None)


def of_claim(claim: OpenClaim, most_seeds: int) -> Proposal:
    """What to run for a claim that is not decidable."""
    verdict = claim.verdict
    blank = Proposal(question=claim.text, now=(verdict.low, verdict.high), unit=verdict.unit)
    if why := _hopeless(claim):
        return replace(blank, why=why)
    if min(len(arm.seeds) for arm in claim.arms) < 2:
        return _first_look(claim, blank)
    if differences(claim.arms, ()):
        return joined(claim.arms, (), replace(blank, why="with all other settings made equal"))
    contrasts = claim.contrasts
    return (
        _of_exponent(claim, blank, most_seeds)
        if contrasts is None
        else _of_contrasts(claim, contrasts, blank, most_seeds)
    )


def _hopeless(claim: OpenClaim) -> str:
    """Why no runs decide a claim, whatever they measure; else empty."""
    why = claim.verdict.why
    if claim.only_there or not claim.arms or why.startswith(LACKING):
        return claim.only_there or why
    if same_arms(pd.concat([arm.runs[[*ARM, "lr_series_hash"]] for arm in claim.arms])):
        return f"{why}; only other settings tell these arms apart"
    return ""


def _first_look(claim: OpenClaim, blank: Proposal) -> Proposal:
    """Enough seeds at each point for a first judgement: as many as most points have."""
    counts = np.array([len(arm.seeds) for arm in claim.arms])
    there = counts[counts > 1]
    count = max(FEWEST_SEEDS, int(np.median(there)) if len(there) else 0)
    why = f"{count} seeds at each point, so that the claim can be judged"
    added = with_seeds(claim.arms, count)
    expected = UNKNOWN
    if claim.contrasts is not None:
        arms = seen(values_at(claim.arms, claim.metric))
        expected = expected_interval(claim.contrasts, arms, np.maximum(counts, count))
    return joined(claim.arms, added, replace(blank, why=why, expected=expected))


def _of_contrasts(
    claim: OpenClaim, contrasts: Contrasts, blank: Proposal, most_seeds: int
) -> Proposal:
    verdict, values = claim.verdict, values_at(claim.arms, claim.metric)
    used = contrasts.uses.any(axis=0)
    needed = verdict.seeds_needed
    why = f"about {needed} seeds per point would show {_amount(verdict.seeds_for, verdict.unit)}"
    if (np.array(values.num_diverged)[used] > 0).any():
        of_each = int(contrasts.uses.sum(axis=1).max())
        needed = fewest_by_rank(of_each, ONE_SIDED / claim.num_claims)
        why = f"runs diverged, and a rank test needs {needed} or more seeds per point"
        if needed <= verdict.num_seeds:
            why = "runs diverged in about equal shares: ranks do not tell the arms apart"
            return replace(blank, why=why)
    if needed < 0:
        return replace(blank, why=verdict.why)
    counts = np.array([len(v) for v in values.finished])
    arms = seen(values)
    if needed > most_seeds:
        most = expected_interval(contrasts, arms, np.maximum(counts, most_seeds))
        why = f"no number of seeds up to {most_seeds} is sure to decide this: {why}"
        return replace(blank, why=why, expected=most)
    expected = expected_interval(contrasts, arms, np.maximum(counts, needed))
    added = with_seeds(claim.arms, needed)
    return joined(claim.arms, added, replace(blank, why=why, expected=expected))


def _of_exponent(claim: OpenClaim, blank: Proposal, most_seeds: int) -> Proposal:
    rows = pd.concat([arm.runs for arm in claim.arms])
    if at_edge := edges_of_warmup(rows, claim.metric):
        found = of_edges(at_edge)
        return replace(found, question=blank.question, now=UNKNOWN, expected=UNKNOWN)
    rng = fixed_rng()
    optima = best_warmups(ended(rows), rng, metric=claim.metric)
    if optima.is_rejected:
        return replace(blank, why=f"no number of seeds decides this: {optima.note}")
    needed = seeds_for_exponent(optima, claim.num_claims, most_seeds)
    if needed < 0:
        why = f"no number of seeds up to {most_seeds} is sure to decide this"
        return replace(blank, why=why)
    return joined(
        claim.arms,
        with_seeds(claim.arms, needed),
        replace(
            blank, why=f"about {needed} seeds per point", expected=expected_exponent(optima, needed)
        ),
    )


def _amount(value: float, unit: str) -> str:
    return f"{100 * value:.3g} points" if unit == "accuracy" else f"{value:.3g} {unit}".strip()
