"""Points of a paper that were not run, with commands that train them in the runs' own settings."""

from collections.abc import Iterator

import pandas as pd

from analysis.decide.arms import paper_arms
from analysis.decide.command import sweep_commands
from analysis.papers import PAPERS
from analysis.papers.claim import Point
from analysis.papers.paper import missing_points, nearest_runs, place_runs
from analysis.tables.which_runs import ended_runs
from sweeper.spec.run_spec import read_run_spec


def describe_missing(name: str, runs: pd.DataFrame, results: str) -> Iterator[str]:
    """The points that a paper's figures lack, with the commands that train them, a text each.

    None for a paper whose points are not batches, warmups and lr rules.
    """
    if (paper := PAPERS.get(name)) is None:
        return
    compared = nearest_runs(runs, paper).runs
    placed = place_runs(compared, paper)
    with_result = ended_runs(compared)["seed"]
    seeds = sorted(map(int, (with_result if len(with_result) else compared["seed"]).unique()))
    lacking: dict[tuple[Point, ...], list[str]] = {}
    for figure in paper.figures:
        lacking.setdefault((*missing_points(placed, figure),), []).append(figure.name)
    lacking.pop((), None)
    for gaps, names in lacking.items():
        verb = "lacks" if len(names) == 1 else "lack"
        lines = [f"{', '.join(names)} {verb} {'; '.join(map(str, gaps))}."]
        arms = paper_arms(gaps, placed, compared, paper)
        refused: dict[str, list[str]] = {}
        for arm in arms:
            try:
                read_run_spec(arm.config)
            except ValueError as error:  # without advice on other settings
                why = str(error).splitlines()[0].partition(". ")[0]
                refused.setdefault(why, []).append(arm.name)
        if refused:
            named = "; ".join(f"{', '.join(names)} ({why})" for why, names in refused.items())
            lines.append(f"Not possible with the settings of these runs: {named}.")
        lost = {name for names in refused.values() for name in names}
        if possible := [arm for arm in arms if arm.name not in lost]:
            which = "the others" if refused else "them"
            lines.append(f"To run {which}, with the settings of these runs:")
            configs = [{**arm.config, "seed": seed} for arm in possible for seed in seeds]
            is_again = any((arm.runs["outcome"] == "failed").any() for arm in possible)
            lines += sweep_commands(configs, results, *["retry=failed"] * is_again)
        yield "\n  ".join(lines)
