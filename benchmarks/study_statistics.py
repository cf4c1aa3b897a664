"""How often verdicts are false and intervals hold, over simulated studies of known truth.

    python -m benchmarks.study_statistics [--verdicts 2000] [--coverage 300] [--laws 100]
        [--only WORD ...]

The first table is of studies in which nothing differs, judged by the claims of a paper; the second
of the power of such a family; the third of intervals, the fourth of laws across sizes. The tables
are in docs/statistics.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_estimates import KINDS, coverage
from simulated_tables import KINDS as TABLES
from simulated_tables import claims, covers, shuffled
from simulated_verdicts import NOISES, decided, judged, share_false, values_at

from analysis.papers.goyal2017 import PAPER as GOYAL
from analysis.papers.mccord2021 import PAPER as MCCORD
from analysis.papers.paper import Paper
from analysis.stats.contrasts import ONE_SIDED

SEEDS = (3, 5, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=2000, help="studies of each kind")
    parser.add_argument("--coverage", type=int, default=300, help="studies of each kind")
    parser.add_argument("--laws", type=int, default=100, help="tables of each kind")
    parser.add_argument("--only", nargs="*", default=[""], help="estimates with any of these words")
    options = parser.parse_args()
    if options.verdicts:
        false_verdicts(options.verdicts)
        power(options.verdicts)
    if options.coverage:
        held(options.coverage, options.only)
    if options.laws:
        held_laws(options.laws, options.only)


def _points(paper: Paper) -> list:
    return [point for claim in paper.claims for point in claim.points]


def false_verdicts(studies: int) -> None:
    print("| family | noise | 3 seeds | 5 seeds | 10 seeds |\n| --- | --- | --- | --- | --- |")
    for paper in (MCCORD, GOYAL):
        for noise in NOISES:
            cells = []
            for seeds in SEEDS:
                values = values_at(_points(paper), lambda _: 0.97, noise, seeds, studies, seed=2)
                count = int(share_false(paper.claims, judged(paper.claims, values)).sum())
                limit = stats.beta.ppf(0.95, count + 1, studies - count)
                cells.append(f"{100 * count / studies:.1f} (below {100 * limit:.1f})")
            print(f"| {paper.citation} | {noise} | {' | '.join(cells)} |", flush=True)


def power(studies: int) -> None:
    """Of a claim that is true by 2 and 4 standard deviations, alone and in its family."""
    text = "At 7,680, 5 epochs of warmup are best"
    print("| true by | seeds | alone | in its family |\n| --- | --- | --- | --- |")
    for by in (2, 4):
        for seeds in SEEDS:
            values = values_at(
                _points(MCCORD), lambda p, by=by: 0.9 + 0.004 * by * (p.warmup == 5), "normal",
                seeds, studies,
            )  # fmt: skip
            found = judged(MCCORD.claims, values, draws=0)
            alone = np.mean(found[text][0] < ONE_SIDED)
            family = next(yes.mean() for name, yes, _ in decided(found) if name == text)
            print(f"| {by} sd | {seeds} | {100 * alone:.0f} % | {100 * family:.0f} % |")


def held(studies: int, only: Sequence[str]) -> None:
    print("| estimate | 3 seeds | 5 seeds |\n| --- | --- | --- |")
    for kind in (name for name in KINDS if any(word in name for word in only)):
        cells = []
        for seeds in (3, 5):
            refused, share, _ = coverage(kind, studies=studies, draws=400, seeds=seeds)
            words = "" if np.isnan(share) else f"{100 * share:.0f}"
            cells.append(f"{words} (refused {100 * refused:.0f})" if refused else words)
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


def held_laws(tables: int, only: Sequence[str]) -> None:
    """Coverage of powers of the best batch and rate, and how often shuffled tables have one."""
    print("| tables | answered | covers | least | width |\n| --- | --- | --- | --- | --- |")
    for kind in (name for name in TABLES if any(word in name for word in only)):
        rng = np.random.default_rng(1)
        found = [covers(TABLES[kind], rng) for _ in range(tables)]
        known = np.array([each for each, _ in found if each])
        width = np.median([w for each, w in found if each])
        cells = (len(known) / tables, known.mean(), known.mean(axis=0).min())
        shares = " | ".join(f"{100 * share:.0f} %" for share in cells)
        print(f"| {kind} | {shares} | {width:.2f} |", flush=True)
    for what in ("loss", "cells"):
        rng = np.random.default_rng(2)
        said = np.array([claims(shuffled(rng, what)) for _ in range(tables)])
        said = said[:, : 5 if what == "loss" else 4]  # the rate still moves with the batch
        each, some = 100 * said.mean(axis=0).max(), 100 * said.any(axis=1).mean()
        print(f"shuffled {what}: at most {each:.0f} % by question, any in {some:.0f} %", flush=True)


if __name__ == "__main__":
    main()
