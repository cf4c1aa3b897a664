"""How often a question asked after each seed is answered wrongly, and how many runs that takes.

    python -m benchmarks.sequential [--studies 2000]

Of simulated studies of known truth, beside one test of the whole grid. The tables are in
docs/sequential.md.
"""

import argparse
import sys
from pathlib import Path

from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_questions import NOISES, Kind, asked, best_of, no_worse

from analysis.sequential.looks import Looks

#: Questions with no right answer: arms are equal, or exactly at the margin.
NOTHING = {
    "best of 2": best_of(0, 0),
    "best of 4": best_of(0, 0, 0, 0),
    "no worse, 3 batches": no_worse(0, -1, -1, -1, margin=1),
}
#: In standard deviations of the noise.
SOMETHING = {
    "best of 2, by 1": best_of(0, 1),
    "best of 2, by 2": best_of(0, 2),
    "best of 2, by 4": best_of(0, 4),
    "best of 4, by 2": best_of(0, 0, 0, 2),
    "best of 4, in steps of 2": best_of(0, 2, 4, 6),
    "no worse by 1: 2 equal, 1 worse by 3": no_worse(0, 0, 0, -3, margin=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=2000, help="of each kind")
    studies = parser.parse_args().studies
    print("| question | noise | 6 seeds | 10 seeds | 20 seeds |\n| --- | --- | --- | --- | --- |")
    for name, kind in NOTHING.items():
        for noise in NOISES:
            cells = [_wrong(kind, noise, last, studies) for last in (6, 10, 20)]
            print(f"| {name} | {noise} | {' | '.join(cells)} |", flush=True)
    print(
        "| question | seeds | answered rightly | wrongly | runs | the whole grid |\n"
        + "| --- " * 6
        + "|"
    )
    for name, kind in {**SOMETHING, **NOTHING}.items():
        for last in (6, 10, 20):
            print(f"| {name} | {last} | {_compared(kind, last, studies)} |", flush=True)


def _wrong(kind: Kind, noise: str, last: int, studies: int) -> str:
    """Answers that are wrong, and the upper 95 % limit of their share [%]."""
    share = asked(kind, noise, Looks.plan(1, first=3, last=last), studies).wrong
    count = round(share * studies)
    return f"{100 * share:.1f} (below {100 * stats.beta.ppf(0.95, count + 1, studies - count):.1f})"


def _compared(kind: Kind, last: int, studies: int) -> str:
    ours = asked(kind, "normal", Looks.plan(1, first=3, last=last), studies)
    grid = asked(kind, "normal", Looks((last,), level=0.05), studies)
    saved = 1 - ours.runs / grid.runs
    return (
        f"{100 * ours.right:.0f} % | {100 * ours.wrong:.1f} % | {ours.runs:.1f} of {grid.runs:.0f}"
        f" ({100 * saved:.0f} % saved) | {100 * grid.right:.0f} %, {100 * grid.wrong:.1f} % wrong"
    )


if __name__ == "__main__":
    main()
