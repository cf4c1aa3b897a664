"""What to run next for all that runs leave open, most useful first."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from analysis.decide.claims import open_claims, propose_for_claim
from analysis.decide.command import sweep_commands
from analysis.decide.edges import Edge, find_edges, propose_longer_grid
from analysis.decide.expected import UNKNOWN
from analysis.decide.priced_runs import Prices
from analysis.decide.proposal import Proposal
from analysis.papers import limit2020
from analysis.papers.judge import Judged
from analysis.tables.comparable_runs import AXES, group_comparable
from analysis.tables.metric import Measured
from analysis.tables.which_runs import ended
from sweeper.spec.sentences import several

#: Most seeds per point that are proposed, if no other number is asked for.
MOST_SEEDS = 50
_MOST_NAMED = 4


def propose(
    measured: Measured,
    judged: Sequence[Judged],
    *,
    price: float | None = None,
    most_seeds: int = MOST_SEEDS,
) -> list[Proposal]:
    """What to run next, most useful first.

    The most useful settles the most open questions per device-hour, or per run where the time of a
    run is not known; what no runs decide is last.

    Args:
        measured: the runs, with their metric.
        judged: papers' claims on them.
        price: of a device-hour.
        most_seeds: of a point.

    """
    prices = Prices.at(measured.runs, price)
    if not len(ended(measured.runs)):
        question = f"None of {several(len(measured.runs), 'run')} has a result"
        return [Proposal(question=question, why="`sweeper status` says what became of them")]
    found = [propose_for_claim(claim, most_seeds) for claim in open_claims(judged)]
    by_end: dict[tuple[str, bool], list[Edge]] = {}
    for edge in find_edges(measured):
        by_end.setdefault((edge.key, edge.is_upper), []).append(edge)
    found += [propose_longer_grid(edges) for edges in by_end.values()]
    priced = [_add_commands(proposal, prices) for proposal in found]
    return [*_rank(priced), *_name_groups(measured.runs, judged)]


def _name_groups(runs: pd.DataFrame, judged: Sequence[Judged]) -> Iterator[Proposal]:
    """That runs are not compared because they differ in more than what questions are about.

    Estimates compare base rates, and claims about optimizers compare their recipes.
    """
    has_recipes = any(j.paper == limit2020.NAME and j.is_asked for j in judged)
    groups = group_comparable(runs, (*AXES, *(limit2020.RECIPE if has_recipes else ("base_lr",))))
    if len(groups) < 2:
        return
    named = [f"{group.name} ({several(len(group.runs), 'run')})" for group in groups]
    if len(named) > _MOST_NAMED:
        named = [*named[:_MOST_NAMED], f"and {len(named) - _MOST_NAMED} more"]
    yield Proposal(
        question=f"Runs of {len(groups)} groups are not compared: {', '.join(named)}",
        why=(
            "each question is about one group; what is to be compared must be alike in all "
            "settings but those in question"
        ),
    )


def _add_commands(proposal: Proposal, prices: Prices) -> Proposal:
    """The proposal with what its runs cost and the commands that train them, if possible."""
    if not proposal.configs:
        return proposal
    folder = f"{prices.results.rstrip('/')}_again" if proposal.repeats else prices.results
    try:
        priced = prices.of(proposal.configs)
        is_again = not proposal.repeats and prices.have_failed(priced.run_ids)
    except ValueError as error:  # of settings that this version does not have, or no layout
        why = f"such runs are not possible: {str(error).splitlines()[0]}"
        return replace(proposal, configs=(), why=why, expected=UNKNOWN)
    return replace(
        proposal,
        priced=priced,
        commands=sweep_commands(proposal.configs, folder, *["retry=failed"] * is_again),
    )


def _rank(found: Sequence[Proposal]) -> list[Proposal]:
    """Proposals in order; those with the same runs are merged into the first."""
    first: dict[tuple[frozenset[str], str], Proposal] = {}
    for i, proposal in enumerate(found):
        run_ids = proposal.priced.run_ids
        settled = [
            other.question
            for other in found
            if other is not proposal
            and other.configs
            and other.priced.run_ids <= run_ids
            and bool(other.repeats) == bool(proposal.repeats)
        ]
        key = run_ids, "" if proposal.configs else str(i)
        first.setdefault(key, replace(proposal, settles=settled))
    merged = list(first.values())
    are_known = None not in [p.priced.device_hours for p in merged if p.configs]

    def order(proposal: Proposal) -> tuple[bool, bool, float]:
        cost = proposal.priced.device_hours if are_known else len(proposal.priced.run_ids)
        num_settled = 1 + len(proposal.settles)
        return not proposal.commands, not proposal.configs, -num_settled / (cost or 1)

    return sorted(merged, key=order)
