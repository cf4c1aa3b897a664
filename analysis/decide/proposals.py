"""What to run next for all that runs leave open, most useful first."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import pandas as pd

from analysis.decide.arms import Arm, add_seeds
from analysis.decide.claims import FEWEST_SEEDS, open_claims, propose_for_claim
from analysis.decide.command import sweep_commands
from analysis.decide.grid_ends import Edge, find_edges, propose_longer_grid
from analysis.decide.proposal import MOST_SEEDS, UNKNOWN, Proposal, propose_runs
from analysis.figures.points import POINT
from analysis.papers.judge import Judged
from analysis.stats.answer import Answer
from analysis.stats.best_setting import choose_settings
from analysis.stats.pairs import rule_pairs
from analysis.tables.comparable_runs import group_comparable, stored_configs
from analysis.tables.metric import Measured
from analysis.tables.settings import comparable_settings
from analysis.tables.which_runs import ended_runs
from sweeper.planning.seconds import Speeds
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import read_run_spec
from sweeper.spec.sentences import several
from sweeper.store.ledger import Ledger


def propose_next(
    measured: Measured, judged: Sequence[Judged], best_batch: Answer
) -> list[Proposal]:
    """What to run next, most useful first.

    The most useful settles the most open questions per device-hour, or per run where the time of a
    run is not known; what no runs decide is last.

    Args:
        measured: the runs, with their metric.
        judged: papers' claims on them.
        best_batch: which batch to train with, so far.
    """
    runs = measured.runs
    if not len(ended_runs(runs)):
        question = f"None of {several(len(runs), 'run')} has a result"
        return [Proposal(question=question, why="`sweeper status` says what became of them")]
    if runs["branch"].notna().all():
        why = "`sweeper analysis branches` compares them; new seeds need parents first"
        return [Proposal(question=f"All {several(len(runs), 'run')} are branches", why=why)]
    found = [propose_for_claim(claim, MOST_SEEDS) for claim in open_claims(judged)]
    by_end: dict[tuple[str, bool], list[Edge]] = {}
    for edge in find_edges(measured):
        by_end.setdefault((edge.key, edge.is_upper), []).append(edge)
    found += [propose_longer_grid(edges) for edges in by_end.values()]
    found += [*_propose_for_batch(measured, best_batch), *_propose_seeds(measured)]
    prices = (config.settings.get("price") for config in stored_configs(runs))
    price = next((known for known in prices if isinstance(known, int | float)), None)
    if any(proposal.configs for proposal in found):
        results, kinds = str(runs["results"].mode().iloc[0]), runs["device_kind"].dropna()
        kind = str(kinds.mode().iloc[0]) if len(kinds) else "cpu"
        speeds = Speeds(Ledger(Path(results)), Device(kind=kind))
        failed = set(runs.loc[runs["outcome"] == Outcome.FAILED, "run_id"])
        found = [_add_commands(proposal, results, speeds, price, failed) for proposal in found]
    return _rank(found)


def _propose_for_batch(measured: Measured, asked: Answer) -> Iterator[Proposal]:
    """Seeds of the batches that may be best, each at its best setting."""
    if not (count := asked.settings.get("seeds_needed")):
        return
    blank = Proposal(
        question=asked.question, why=f"more than {MOST_SEEDS} seeds of each batch are needed"
    )
    if count > MOST_SEEDS:
        yield blank
        return
    tuned, columns = comparable_settings(measured.runs_with_metric)
    runs = ended_runs(choose_settings(tuned, columns, measured.metric).runs)
    taken = pd.MultiIndex.from_frame(asked.table.iloc[:, : len(POINT)])
    runs = runs[pd.MultiIndex.from_frame(runs[POINT]).isin(taken)]
    arms = [
        Arm.of_runs(f"batch={batch}", rows)
        for batch, rows in runs.groupby("global_batch")
        if isnan(asked.low) or asked.low <= float(str(batch)) <= asked.high
    ]
    why = f"about {count:g} seeds of each batch would show whether {asked.value:,} loses so little"
    yield propose_runs(arms, add_seeds(arms, int(count)), replace(blank, why=why))


def _propose_seeds(measured: Measured) -> Iterator[Proposal]:
    """Seeds for the two rules that fewest would tell apart, and for points with a single seed."""
    runs = ended_runs(group_comparable(measured.runs_with_metric)[0].runs)
    named = {
        (batch, warmup, rule): Arm.of_runs(f"batch={batch} warmup={warmup:g} lr_rule={rule}", rows)
        for (batch, warmup, rule), rows in runs.groupby(POINT)
    }
    if single := [arm for arm in named.values() if len(arm.seeds) < 2]:
        why = "three seeds each give their means an interval"
        blank = Proposal(question="How far do points with one seed scatter?", why=why)
        yield propose_runs(single, add_seeds(single, FEWEST_SEEDS), blank)
    pairs, _, _ = rule_pairs(runs, measured.curves, measured.metric)
    is_open = [pair for pair in pairs.to_dict("records") if 1 <= pair["seeds_needed"] <= MOST_SEEDS]
    for pair in sorted(is_open, key=lambda pair: pair["seeds_needed"])[:1]:
        at = pair["global_batch"], pair["warmup_epochs"]
        arms, count = [named[*at, pair[rule]] for rule in ("first", "second")], pair["seeds_needed"]
        blank = Proposal(
            question=f"{pair['first']} or {pair['second']} at batch {at[0]:,}, warmup {at[1]:g}?",
            now=(pair["low"], pair["high"]),
            unit=measured.metric.word,
            why=f"about {count} seeds of each rule would tell them apart, or show them equal",
        )
        yield propose_runs(arms, add_seeds(arms, count), blank)


def _add_commands(
    proposal: Proposal, results: str, speeds: Speeds, price: float | None, failed: set[str]
) -> Proposal:
    """The proposal with what its runs cost and the commands that train them, if possible.

    Runs that have failed are not tried again unless the command asks for it.
    """
    if not proposal.configs:
        return proposal
    try:
        specs = {spec.run_id: spec for spec in map(read_run_spec, proposal.configs)}
    except ValueError as error:  # of settings that this version does not have, or no layout
        why = f"such runs are not possible: {str(error).splitlines()[0]}"
        return replace(proposal, configs=(), why=why, expected=UNKNOWN)
    known = [(speeds.predict(spec), spec.split.world_size) for spec in specs.values()]
    hours = [seconds.total * ranks / 3600 for seconds, ranks in known if seconds]
    device_hours = sum(hours) if len(hours) == len(known) else None
    is_again = not proposal.repeats and not failed.isdisjoint(specs)
    folder = f"{results.rstrip('/')}_again" if proposal.repeats else results
    return replace(
        proposal,
        run_ids=frozenset(specs),
        device_hours=device_hours,
        cost=device_hours * price if device_hours is not None and price else None,
        commands=sweep_commands(proposal.configs, folder, *["retry=failed"] * is_again),
    )


def _rank(found: Sequence[Proposal]) -> list[Proposal]:
    """Proposals in order; those with the same runs are merged into the first."""
    first: dict[tuple[frozenset[str], str], Proposal] = {}
    for i, proposal in enumerate(found):
        others = [p for p in found if p is not proposal and p.configs]
        alike = [p for p in others if bool(p.repeats) == bool(proposal.repeats)]
        settled = [p.question for p in alike if p.run_ids <= proposal.run_ids]
        key = proposal.run_ids, "" if proposal.configs else str(i)
        first.setdefault(key, replace(proposal, settles=settled))
    merged = list(first.values())
    are_known = None not in [p.device_hours for p in merged if p.configs]

    def order(proposal: Proposal) -> tuple[bool, bool, float]:
        cost = proposal.device_hours if are_known else len(proposal.run_ids)
        num_settled = 1 + len(proposal.settles)
        return not proposal.commands, not proposal.configs, -num_settled / (cost or 1)

    return sorted(merged, key=order)
