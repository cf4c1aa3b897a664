"""Points of a paper that were not run, with commands that train them in the runs' own settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.decide.arms import config_of, paper_arms
from analysis.decide.command import Config, commands
from analysis.decide.presets import composed
from analysis.papers import PAPERS, limit2020
from analysis.papers.grid import Point, missing_points
from analysis.papers.paper import IMAGENET_EXAMPLES, Paper, nearest_runs, own_batch, place_runs
from analysis.tables.which_runs import ended
from sweeper.spec.run_spec import stored_run_spec

#: Keys of the config that a recipe of an optimizers' study sets.
_OF_RECIPE = (*limit2020.RECIPE, "warmup", "lr_rule")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A point that was not run.

    Attributes:
        name: in words.
        config: of its runs, with any seed.
        has_failed: whether a run of it failed, and is not tried again unless asked.
    """

    name: str
    config: Config
    has_failed: bool = False


def of_paper(name: str, runs: pd.DataFrame, results: str) -> Iterator[str]:
    """The points that a paper's figures lack, with the commands that train them; one text each."""
    if name == limit2020.NAME:
        yield from _of_optimizers(runs, results)
        return
    paper = PAPERS[name]
    compared = nearest_runs(runs, paper).runs
    placed = place_runs(compared, paper)
    lacking: dict[tuple[Point, ...], list[str]] = {}
    for figure in paper.figures:
        lacking.setdefault((*missing_points(placed, figure),), []).append(figure.name)
    for gaps, names in lacking.items():
        if gaps:
            yield _of_figures(names, gaps, paper, compared, results)


def _of_figures(
    names: Sequence[str], gaps: Sequence[Point], paper: Paper, runs: pd.DataFrame, results: str
) -> str:
    """That figures lack these points, and the commands for them, of comparable runs."""
    arms = paper_arms(gaps, place_runs(runs, paper), runs, paper)
    wanted = [
        _Wanted(arm.name, arm.config, bool((arm.runs["outcome"] == "failed").any())) for arm in arms
    ]
    verb = "lacks" if len(names) == 1 else "lack"
    first = f"{', '.join(names)} {verb} {'; '.join(map(str, gaps))}."
    return "\n  ".join([first, *_to_run(wanted, _seeds(runs), results)])


def _of_optimizers(runs: pd.DataFrame, results: str) -> Iterator[str]:
    """The same for each optimizer of You et al. 2020 that lacks batches of the preset's grid."""
    shown = limit2020.by_optimizer(runs)
    first = shown.iloc[0]
    is_small = bool(shown["twin_of"].notna().any())
    if not is_small and "imagenet" not in str(first["data"]).lower():
        yield (
            "No commands for missing points: the paper's batches are of ImageNet, and these runs "
            f"are of {first['data']} and have no twin_of."
        )
        return
    preset = f"{limit2020.EXPERIMENT}_small" if is_small else limit2020.EXPERIMENT
    examples = int(shown["num_train_examples"].max()) if is_small else IMAGENET_EXAMPLES
    by_name = {str(name): rows for name, rows in shown.groupby("optimizer")}
    gaps = limit2020.missing_points(shown)
    for optimizer in limit2020.OPTIMIZERS:
        batches = [own_batch(batch, examples) for batch, name in gaps if name == optimizer]
        if not batches:
            continue
        there = by_name.get(optimizer)
        recipe = _recipe(preset, optimizer) if there is None else {}
        like = config_of(first if there is None else there.iloc[0]) | recipe
        wanted = [_Wanted(f"batch {b:,}", {**like, "batch": b}) for b in batches]
        lacks = f"lacks {optimizer} at batch {', '.join(f'{batch:,}' for batch in batches)}."
        yield "\n  ".join([lacks, *_to_run(wanted, _seeds(shown), results)])


def _recipe(preset: str, optimizer: str) -> Config:
    presets = (("experiment", preset), ("recipe", f"{preset}_{optimizer}"))
    settings = composed("classifier", presets).settings
    return {key: settings[key] for key in _OF_RECIPE}


def _seeds(runs: pd.DataFrame) -> list[int]:
    found = ended(runs)["seed"]
    return sorted(map(int, (found if len(found) else runs["seed"]).unique()))


def _to_run(wanted: Sequence[_Wanted], seeds: Sequence[int], results: str) -> Iterator[str]:
    """Which points are not possible in the runs' settings, and the commands for the others."""
    refused: dict[str, list[str]] = {}
    possible: list[_Wanted] = []
    for point in wanted:
        if why := _refusal(point.config):
            refused.setdefault(why, []).append(point.name)
        else:
            possible.append(point)
    if refused:
        named = "; ".join(f"{', '.join(names)} ({why})" for why, names in refused.items())
        yield f"Not possible with the settings of these runs: {named}."
    if possible:
        yield f"To run {'the others' if refused else 'them'}, with the settings of these runs:"
        again = ["retry=failed"] * any(point.has_failed for point in possible)
        configs = [{**point.config, "seed": seed} for point in possible for seed in seeds]
        yield from commands(configs, results, *again)


def _refusal(config: Config) -> str:
    """Why a run is not possible, without advice on other settings; empty if it is."""
    try:
        stored_run_spec(config)
    except ValueError as error:
        return str(error).splitlines()[0].partition(". ")[0]
    return ""
