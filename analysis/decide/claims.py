"""Claims that are not decidable, and what to run for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.decide.arms import Arm, add_seeds, compare_settings, config_from_row, paper_arms
from analysis.decide.edges import find_optimum_edges, propose_longer_grid
from analysis.decide.expected import (
    UNKNOWN,
    expected_exponent,
    expected_interval,
    fewest_seeds_by_rank,
    seeds_for_exponent,
)
from analysis.decide.proposal import Proposal, propose_runs
from analysis.papers import PAPERS, limit2020
from analysis.papers.claim import LACKING, UNDECIDED, Point, Verdict, point_values, runs_about
from analysis.papers.judge import Judged
from analysis.papers.paper import place_runs
from analysis.stats.contrasts import ONE_SIDED, Arms, Contrasts
from analysis.stats.optimum import best_warmups
from analysis.stats.replicates import make_rng
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.validity import ARM, same_arms
from analysis.tables.which_runs import ended_runs

#: Seeds with which a point is first judged: with two, an interval says next to nothing.
FEWEST_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClaim:
    """A claim that is not decidable.

    Attributes:
        verdict: so far.
        arms: the points that it is about; none if no runs like these can decide it.
        contrasts: of the arms; None for a claim about the best warmup's exponent.
        metric: what it is about.
        num_claims: claims of its paper, which share the error rate.
    """

    verdict: Verdict
    arms: list[Arm]
    contrasts: Contrasts | None
    metric: Metric = ACCURACY
    num_claims: int = 1


def open_claims(judged: Sequence[Judged]) -> Iterator[OpenClaim]:
    """The claims, of papers that the runs speak to, that are not decidable."""
    for paper in judged:
        if paper.is_asked:
            find = _open_claims_of_grid if paper.paper in PAPERS else _open_claims_of_limit
            yield from find(paper)


def _open_claims_of_grid(judged: Judged) -> Iterator[OpenClaim]:
    paper, runs = PAPERS[judged.paper], judged.compared.runs
    placed = place_runs(runs, paper)
    for claim, verdict in zip(paper.claims, judged.verdicts, strict=True):
        if verdict.verdict == UNDECIDED:
            about = ended_runs(runs_about(claim, placed))
            seen = about[["paper_batch", "paper_warmup", "lr_rule"]].itertuples(index=False)
            points = dict.fromkeys([*claim.points, *(Point(*at) for at in seen)])
            is_open = not claim.only_there or paper.is_protocol_of(runs)
            yield OpenClaim(
                verdict=verdict,
                arms=paper_arms([*points], placed, runs, paper) if is_open else [],
                contrasts=claim.contrasts,
                metric=claim.metric,
                num_claims=len(paper.claims),
            )


def _open_claims_of_limit(judged: Judged) -> Iterator[OpenClaim]:
    gain, drift = judged.verdicts
    if gain.verdict == UNDECIDED and gain.num_seeds:
        by_name = limit2020.arms_at_largest_batch(judged.compared.runs)
        arms = [Arm(name, rows, config_from_row(rows.iloc[0])) for name, rows in by_name.items()]
        contrasts = limit2020.gains(len(arms))
        yield OpenClaim(verdict=gain, arms=arms, contrasts=contrasts, num_claims=2)
    if drift.verdict == UNDECIDED:
        yield OpenClaim(verdict=drift, arms=[], contrasts=None)


def propose_for_claim(claim: OpenClaim, most_seeds: int) -> Proposal:
    """What to run for a claim that is not decidable."""
    verdict = claim.verdict
    blank = Proposal(
        question=f"{verdict.text} ({verdict.where})",
        now=(verdict.low, verdict.high),
        unit=verdict.unit,
    )
    if not claim.arms or verdict.why.startswith(LACKING):
        return replace(blank, why=verdict.why)
    if same_arms(pd.concat([arm.runs[[*ARM, "lr_series_hash"]] for arm in claim.arms])):
        return replace(blank, why=f"{verdict.why}; only other settings tell these arms apart")
    is_new = min(len(arm.seeds) for arm in claim.arms) < 2
    if not is_new and compare_settings(claim.arms, ()):
        blank = replace(blank, why="with all other settings made equal")
        return propose_runs(claim.arms, (), blank)
    if claim.contrasts is not None:
        return _propose_for_contrasts(claim, claim.contrasts, blank, most_seeds, is_new=is_new)
    if is_new:
        count, why = _first_seeds(claim)
        return propose_runs(claim.arms, add_seeds(claim.arms, count), replace(blank, why=why))
    return _propose_for_exponent(claim, blank, most_seeds)


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
    values = point_values(
        [arm.ended for arm in claim.arms], [arm.name for arm in claim.arms], claim.metric
    )
    with np.errstate(invalid="ignore"):  # of points without runs
        arms = Arms.from_seeds(values.finished)
    arms = arms.floor_variances(values.num_validation) if values.num_validation else arms
    needed, counts = verdict.seeds_needed, arms.counts
    if is_new:
        needed, why = _first_seeds(claim)
        counts = np.array([len(arm.seeds) for arm in claim.arms])
    elif (np.array(values.num_diverged)[contrasts.uses.any(axis=0)] > 0).any():
        num_arms = int(contrasts.uses.sum(axis=1).max())
        needed = fewest_seeds_by_rank(num_arms, ONE_SIDED / claim.num_claims)
        why = f"runs diverged, and a rank test needs {needed} or more seeds per point"
        if needed <= verdict.num_seeds:
            why = "runs diverged in about equal shares: ranks do not tell the arms apart"
            return replace(blank, why=why)
    elif needed < 0:
        return replace(blank, why=verdict.why)
    else:
        amount = f"{verdict.seeds_for:.3g} {verdict.unit}".strip()
        if verdict.unit == "accuracy":
            amount = f"{100 * verdict.seeds_for:.3g} points"
        why = f"about {needed} seeds per point would show {amount}"
    if needed > most_seeds and not is_new:
        most = expected_interval(contrasts, arms, np.maximum(counts, most_seeds))
        why = f"no number of seeds up to {most_seeds} is sure to decide this: {why}"
        return replace(blank, why=why, expected=most)
    expected = expected_interval(contrasts, arms, np.maximum(counts, needed))
    added = add_seeds(claim.arms, needed)
    return propose_runs(claim.arms, added, replace(blank, why=why, expected=expected))


def _propose_for_exponent(claim: OpenClaim, blank: Proposal, most_seeds: int) -> Proposal:
    rows = pd.concat([arm.runs for arm in claim.arms])
    edges = find_optimum_edges(rows, "warmup", "warmup_epochs", claim.metric)
    if at_edge := [edge for edge in edges if edge.is_upper]:
        found = propose_longer_grid(at_edge)
        return replace(found, question=blank.question, now=UNKNOWN, expected=UNKNOWN)
    optima = best_warmups(ended_runs(rows), make_rng(), metric=claim.metric)
    if optima.is_rejected:
        return replace(blank, why=f"no number of seeds decides this: {optima.note}")
    needed = seeds_for_exponent(optima, claim.num_claims, most_seeds)
    if needed < 0:
        why = f"no number of seeds up to {most_seeds} is sure to decide this"
        return replace(blank, why=why)
    expected = expected_exponent(optima, needed)
    blank = replace(blank, why=f"about {needed} seeds per point", expected=expected)
    return propose_runs(claim.arms, add_seeds(claim.arms, needed), blank)
