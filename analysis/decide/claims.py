"""Claims that are open: what to run for them, and the intervals to expect then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.decide.arms import Arm, add_seeds, compare_settings, paper_arms
from analysis.decide.grid_ends import find_optimum_edges, propose_longer_grid
from analysis.decide.proposal import UNKNOWN, Interval, Proposal, propose_runs
from analysis.papers import PAPERS, limit2020
from analysis.papers.claim import LACKING, PLACE, Point, Verdict, measure_arms, runs_about, scale_of
from analysis.papers.judge import Judged
from analysis.papers.paper import place_runs
from analysis.stats.contrasts import ONE_SIDED, Arms, Contrasts, weigh_contrasts
from analysis.stats.optimum import best_warmups
from analysis.stats.replicates import make_rng
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.validity import ARM, same_arms
from analysis.tables.which_runs import ended_runs

#: Seeds with which a point is first judged: with two, an interval says next to nothing.
FEWEST_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClaim:
    """A claim that is not decided.

    Attributes:
        verdict: so far.
        arms: the points that it is about; none if no runs like these can decide it.
        contrasts: of the arms; None for a claim about the best warmup's exponent.
        metric: what it is about.
        num_claims: claims of its paper, which share the error rate.
        paper: its citation.
    """

    paper: str
    verdict: Verdict
    arms: list[Arm]
    contrasts: Contrasts | None
    metric: Metric = ACCURACY
    num_claims: int = 1


def open_claims(judged: Sequence[Judged]) -> Iterator[OpenClaim]:
    """The claims that are not decided."""
    for paper in judged:
        find = _open_claims_of_grid if paper.paper in PAPERS else _open_claims_of_limit
        yield from find(paper)


def _open_claims_of_grid(judged: Judged) -> Iterator[OpenClaim]:
    paper, runs = PAPERS[judged.paper], judged.compared.runs
    placed = place_runs(runs, paper)
    for claim, verdict in zip(paper.claims, judged.verdicts, strict=True):
        if verdict.is_open:
            about = ended_runs(runs_about(claim, placed))
            seen = about[PLACE].itertuples(index=False)
            points = dict.fromkeys([*claim.points, *(Point(*at) for at in seen)])
            is_open = not claim.only_there or paper.is_protocol_of(runs)
            yield OpenClaim(
                paper=judged.citation,
                verdict=verdict,
                arms=paper_arms([*points], placed, runs, paper) if is_open else [],
                contrasts=claim.contrasts,
                metric=claim.metric,
                num_claims=len(paper.claims),
            )


def _open_claims_of_limit(judged: Judged) -> Iterator[OpenClaim]:
    gain, drift = judged.verdicts
    if gain.is_open and gain.num_seeds:
        by_name = limit2020.arms_at_largest_batch(judged.compared.runs)
        arms = [Arm.of_runs(name, rows) for name, rows in by_name.items()]
        contrasts = limit2020.gains(len(arms))
        yield OpenClaim(
            paper=judged.citation, verdict=gain, arms=arms, contrasts=contrasts, num_claims=2
        )
    if drift.is_open:
        yield OpenClaim(paper=judged.citation, verdict=drift, arms=[], contrasts=None)


def propose_for_claim(claim: OpenClaim, most_seeds: int) -> Proposal:
    """What to run for a claim that is not decided."""
    verdict = claim.verdict
    blank = Proposal(
        question=f"{verdict.text} ({claim.paper}, {verdict.where})",
        now=(verdict.low, verdict.high),
        unit=verdict.unit,
    )
    if not claim.arms or verdict.why.startswith(LACKING):
        return replace(blank, why=verdict.why)
    if same_arms(pd.concat([arm.runs[[*ARM, "lr_series_hash"]] for arm in claim.arms])):
        return replace(blank, why=f"{verdict.why}; only other settings tell these points apart")
    is_new = min(len(arm.seeds) for arm in claim.arms) < 2
    if not is_new and compare_settings(claim.arms, ()):
        blank = replace(blank, why="all points with the same settings, as these runs differ")
        return propose_runs(claim.arms, (), blank)
    if claim.contrasts is not None:
        return _propose_for_contrasts(claim, claim.contrasts, blank, most_seeds, is_new=is_new)
    if is_new:
        count, why = _first_seeds(claim)
        return propose_runs(claim.arms, add_seeds(claim.arms, count), replace(blank, why=why))
    return _propose_for_exponent(claim, blank)


def _first_seeds(claim: OpenClaim) -> tuple[int, str]:
    """Seeds at each point for a first judgement, as many as most points have; and why."""
    counts = np.array([len(arm.seeds) for arm in claim.arms])
    there = counts[counts > 1]
    count = max(FEWEST_SEEDS, int(np.median(there)) if len(there) else 0)
    return count, f"{count} seeds at each point, so that the claim can be judged"


def _propose_for_contrasts(
    claim: OpenClaim, contrasts: Contrasts, blank: Proposal, most_seeds: int, *, is_new: bool
) -> Proposal:
    verdict = claim.verdict
    values = measure_arms([arm.ended for arm in claim.arms], claim.metric)
    with np.errstate(invalid="ignore"):  # of points without runs
        arms = values.arms
    needed, counts = verdict.seeds_needed, arms.counts
    if is_new:
        needed, why = _first_seeds(claim)
        counts = np.array([len(arm.seeds) for arm in claim.arms])
    elif (np.array(values.num_diverged)[contrasts.uses.any(axis=0)] > 0).any():
        num_arms = int(contrasts.uses.sum(axis=1).max())
        num_tests = claim.num_claims * (verdict.num_looks + 1)  # with the look that follows
        needed = fewest_seeds_by_rank(num_arms, ONE_SIDED / num_tests)
        why = f"runs diverged, and a test by ranks needs {needed} or more seeds per point"
        if needed <= verdict.num_seeds:
            why = "runs diverged in about equal shares: ranks do not tell the points apart"
            return replace(blank, why=why)
    elif needed < 0:
        return replace(blank, why=verdict.why)
    else:
        scale, unit = scale_of(verdict.unit)
        amount = f"{scale * verdict.seeds_for:.3g} {unit}".strip()
        why = f"about {needed} seeds per point would show a difference of {amount}"
    if needed > most_seeds and not is_new:
        most = expected_interval(contrasts, arms, np.maximum(counts, most_seeds))
        why = f"more than {most_seeds} seeds per point are needed: {why}"
        return replace(blank, why=why, expected=most)
    expected = expected_interval(contrasts, arms, np.maximum(counts, needed))
    added = add_seeds(claim.arms, needed)
    return propose_runs(claim.arms, added, replace(blank, why=why, expected=expected))


def _propose_for_exponent(claim: OpenClaim, blank: Proposal) -> Proposal:
    """A longer grid where that is what lacks: how many seeds would decide it is not predicted."""
    rows = pd.concat([arm.runs for arm in claim.arms])
    edges = find_optimum_edges(rows, "warmup_epochs", claim.metric)
    if at_edge := [edge for edge in edges if edge.is_upper]:
        found = propose_longer_grid(at_edge)
        return replace(found, question=blank.question, now=UNKNOWN, expected=UNKNOWN)
    note = best_warmups(ended_runs(rows), make_rng(), metric=claim.metric).note
    return replace(blank, why=f"more seeds alone need not decide this: {note}".rstrip(": "))


def expected_interval(contrasts: Contrasts, arms: Arms, counts: NDArray[np.int64]) -> Interval:
    """The interval of the deciding contrast with these numbers of seeds per arm.

    Computed as for the verdict (Welch's t with Satterthwaite's degrees of freedom) from the new
    counts, if means and variances stay as observed. An arm with fewer than two seeds is given the
    pooled variance and, for its mean, the mean of the others: then only the width counts.

    Returns:
        The ends; nan if no arm has two seeds.
    """
    known = arms.counts > 1
    if not known.any():
        return UNKNOWN
    pooled = np.average(arms.variances[known], weights=arms.counts[known] - 1)
    variances = np.where(known, arms.variances, pooled)
    seen = arms.counts > 0
    means = np.where(seen, arms.means, np.nanmean(np.where(seen, arms.means, np.nan)))
    found = weigh_contrasts(contrasts, Arms(means, variances, counts))
    return float(found.low), float(found.high)


def fewest_seeds_by_rank(num_arms: int, level: float) -> int:
    """Seeds per arm with which ranks can decide at all: if those of an arm are above all others."""
    return next(n for n in range(2, 1000) if 1 / comb(num_arms * n, n) <= level)
