"""Points of a paper that were not run, with commands that train them in the runs' own settings."""

import shlex
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.decide.arms import paper_arms
from analysis.decide.command import Config, sweep_commands
from analysis.papers import PAPERS, limit2020
from analysis.papers.claim import Point
from analysis.papers.paper import (
    IMAGENET_EXAMPLES,
    missing_points,
    nearest_runs,
    own_batch,
    place_runs,
)
from analysis.tables.which_runs import ended_runs
from sweeper.spec.run_spec import stored_run_spec


def describe_missing(name: str, runs: pd.DataFrame, results: str) -> Iterator[str]:
    """The points that a paper's figures lack, with the commands that train them, a text each."""
    if name == limit2020.NAME:
        yield from _describe_missing_optimizers(runs, results)
        return
    paper = PAPERS[name]
    compared = nearest_runs(runs, paper).runs
    placed = place_runs(compared, paper)
    lacking: dict[tuple[Point, ...], list[str]] = {}
    for figure in paper.figures:
        lacking.setdefault((*missing_points(placed, figure),), []).append(figure.name)
    for gaps, names in lacking.items():
        if gaps:
            arms = paper_arms(gaps, placed, compared, paper)
            verb = "lacks" if len(names) == 1 else "lack"
            first = f"{', '.join(names)} {verb} {'; '.join(map(str, gaps))}."
            wanted = {arm.name: arm.config for arm in arms}
            failed = {arm.name for arm in arms if (arm.runs["outcome"] == "failed").any()}
            yield "\n  ".join([first, *_to_run(wanted, failed, compared, results)])


def _describe_missing_optimizers(runs: pd.DataFrame, results: str) -> Iterator[str]:
    """The optimizers of You et al. 2020 that lack batches of the preset, which runs what lacks."""
    shown = limit2020.by_optimizer(runs)
    first = shown.iloc[0]
    is_small = bool(shown["twin_of"].notna().any())
    if not is_small and "imagenet" not in str(first["data"]).lower():
        yield (
            "No commands for missing points: the paper's batches are of ImageNet, and these runs "
            f"are of {first['data']} and have no twin_of."
        )
        return
    examples = int(shown["num_train_examples"].max()) if is_small else IMAGENET_EXAMPLES
    gaps = limit2020.missing_points(shown)
    for optimizer in limit2020.OPTIMIZERS:
        batches = [own_batch(batch, examples) for batch, name in gaps if name == optimizer]
        if batches:
            yield f"lacks {optimizer} at batch {', '.join(f'{batch:,}' for batch in batches)}."
    if gaps:
        preset = f"{limit2020.EXPERIMENT}{'_small' * is_small}"
        folder = shlex.quote(f"results={results}")
        yield (
            "To run them, add the settings in which these runs differ from the preset to:\n"
            f"  python -m sweeper -m +experiment={preset} {folder}"
        )


def _to_run(
    wanted: dict[str, Config], failed: Sequence[str] | set[str], runs: pd.DataFrame, results: str
) -> Iterator[str]:
    """Which points are not possible in the runs' settings, and the commands for the others.

    Args:
        wanted: configs of the points by name, with any seed.
        failed: points of which a run failed, and is not tried again unless asked.
        runs: whose seeds are used.
        results: their folder.
    """
    refused: dict[str, list[str]] = {}
    possible: list[str] = []
    for name, config in wanted.items():
        try:
            stored_run_spec(config)
            possible.append(name)
        except ValueError as error:  # without advice on other settings
            why = str(error).splitlines()[0].partition(". ")[0]
            refused.setdefault(why, []).append(name)
    if refused:
        named = "; ".join(f"{', '.join(names)} ({why})" for why, names in refused.items())
        yield f"Not possible with the settings of these runs: {named}."
    if possible:
        yield f"To run {'the others' if refused else 'them'}, with the settings of these runs:"
        with_result = ended_runs(runs)["seed"]
        seeds = sorted(map(int, (with_result if len(with_result) else runs["seed"]).unique()))
        configs = [{**wanted[name], "seed": seed} for name in possible for seed in seeds]
        again = ["retry=failed"] * any(name in failed for name in possible)
        yield from sweep_commands(configs, results, *again)
