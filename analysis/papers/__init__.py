"""Figures of published papers, redrawn from the tables."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.figures.save import save
from analysis.papers import goyal2017, limit2020, mccord2021
from analysis.papers.design import Paper, command, in_paper_numbers, missing
from analysis.papers.draw import draw
from analysis.tables.comparable_runs import Study, studies

PAPERS = {paper.name: paper for paper in (mccord2021.PAPER, goyal2017.PAPER)}
NAMES = (*PAPERS, limit2020.EXPERIMENT)


def draw_paper(
    name: str, runs: pd.DataFrame, curves: pd.DataFrame, folder: Path, results: str
) -> Iterator[str]:
    """Draw every figure of a paper that the runs allow, and name what is missing.

    Args:
        name: one of `NAMES`.
        runs: one row per run.
        curves: one row per run and epoch.
        folder: where the figures go.
        results: the results folder, for the commands that are proposed.

    Yields:
        Lines to print: files written, points missing and the command that runs them.
    """
    if name == limit2020.EXPERIMENT:
        for path in save(*limit2020.draw(runs), folder / name, "accuracy_by_optimizer"):
            yield f"wrote {path}"
        yield from limit2020.missing_lines(runs, results)
        return
    paper = PAPERS[name]
    study = best_study(runs, paper)
    for figure in paper.figures:
        drawn = draw(paper, figure, study, curves)
        for path in save(*drawn, folder / name, figure.name) if drawn else ():
            yield f"wrote {path}"
        yield from _missing_lines(paper, study, figure.name, results)


def best_study(runs: pd.DataFrame, paper: Paper) -> Study:
    """The study with most runs on the paper's grid.

    Args:
        runs: one row per run.
        paper: the paper.
    """
    return max(studies(runs), key=lambda study: len(in_paper_numbers(study.runs, paper)))


def _missing_lines(paper: Paper, study: Study, figure_name: str, results: str) -> Iterator[str]:
    figure = next(f for f in paper.figures if f.name == figure_name)
    placed = in_paper_numbers(study.runs, paper)
    gaps = missing(placed, figure)
    if gaps:
        words = "; ".join(f"batch {p.batch:,} warmup {p.warmup:g} {p.rule}" for p in gaps)
        proposal = command(gaps, paper, placed, results)
        yield f"{figure.name} lacks {words}. To run, with any other choices as before: {proposal}"
