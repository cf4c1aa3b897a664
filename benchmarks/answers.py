"""What the analysis answers of realistic studies, and how often it is right.

    python -m benchmarks.answers [--studies 100] [--only WORD ...] [--kept answers.json]

Studies of worlds that share no assumption with the estimators are put through the estimates as a
results folder would be. Each is kept in the file when it is done, so that a run that was stopped,
or is asked for more studies, goes on from there. The table is in docs/statistics.md.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_accuracies import MARGIN, WORLDS, World
from simulated_responses import GRIDS, RULES, Grid
from simulated_studies import simulated_curves, simulated_runs
from simulated_worlds import BATCHES, CRITICAL, train

from analysis.report.estimates import estimate_all
from analysis.stats.answer import Answer
from analysis.tables.metric import ACCURACY, Measured

_DRAWS = 400
Row = dict[str, float]


def ask(runs: pd.DataFrame, curves: pd.DataFrame | None = None) -> dict[str, Answer]:
    """All answers by their names; without curves there are none about targets."""
    curves = simulated_curves(runs, 1).iloc[:0] if curves is None else curves
    return {a.name: a for a in estimate_all(Measured(runs, curves, ACCURACY), draws=_DRAWS)}


def of_interval(answer: Answer, truth: float) -> Row:
    """Whether both ends, or one, are known and hold the truth, and how far apart they are."""
    low, high = answer.low, answer.high
    is_finite = np.isfinite(low) and np.isfinite(high)
    return {
        "answered": float(is_finite), "one or both ends": float(answer.has_answer),
        "covers": float(not (low > truth or high < truth)) if answer.has_answer else np.nan,
        "width": high - low if is_finite else np.nan,
        "ratio": high / low if low > 0 else np.nan,
    }  # fmt: skip


def of_batches(answer: Answer, means: dict[int, float]) -> Row:
    """Width and coverage of the losses of all batches, and false statements about them."""
    every = np.array([*means.values()])
    losses = {b: np.delete(every, i).max() - m for i, (b, m) in enumerate(means.items())}
    table = answer.table
    true = 100 * table["batch"].map(losses)
    low, high = table["at least (95 %)"], table["at most (95 %)"]
    used = table["batch"] == answer.value
    if low.isna().any():  # one seed: nothing is said of them
        return {"width": np.nan}
    return {
        "width": float((high - low).mean()),
        "covers": float(((low <= true) & (true <= high)).all()),
        "risk below .5": float((high[used] < 100 * MARGIN).all()),
        "falsely shown": float(((low > 100 * MARGIN) & (true < 100 * MARGIN)).any()),
        "falsely excluded": float(((high <= 0) & (true > 0)).any()),
        "falsely used": float((high[used] < true[used]).any()),
    }  # fmt: skip


def rate_study(rng: np.random.Generator, grid: Grid) -> dict[str, Row]:
    """A grid over the rate: the exponent, rules told apart, and batches at their best rates."""
    power = float(rng.choice([*RULES]))
    grid = grid.following(power)
    found = ask(grid.runs(rng))
    rate = found["best_rate_exponent"]
    left = rate.settings.get("rules_not_excluded")
    return {
        "rate": {
            **of_interval(rate, power), "told apart": float(left == [RULES[power]]),
            "falsely excluded": float(left is not None and RULES[power] not in left),
        },
        "best batch": of_batches(found["best_batch"], grid.highest()),
    }  # fmt: skip


def batch_study(rng: np.random.Generator, world: World) -> dict[str, Row]:
    """Seeds of batches: which is best, and where accuracy breaks."""
    drawn = world.draw(rng).sort_values(["global_batch", "seed"], ignore_index=True)
    drawn = drawn.drop(columns=["base_lr", "lr_rule", "warmup_epochs"])
    runs = simulated_runs(world.batches, [5], world.seeds, accuracy=lambda *_: 0.0)
    found = ask(runs.assign(**drawn))
    means = world.accuracy(np.array(world.batches, dtype=float))
    return {
        "best batch": of_batches(found["best_batch"], dict(zip(world.batches, means, strict=True))),
        "break": of_interval(found["breaking_batch"], world.breaks_at),
    }


def target_study(rng: np.random.Generator, **settings) -> dict[str, Row]:
    """Curves to a target: where examples double, and E_min / S_min."""
    found = ask(*train(rng, **settings))
    truths = {"doubling_batch": CRITICAL + 2 * BATCHES[0], "critical_batch": CRITICAL}
    return {
        name: {
            **of_interval(found[name], truth),
            "said why": float(found[name].words.startswith("Not answered: the learning rate")),
        }
        for name, truth in truths.items()
    }


_WORLDS = ("3 seeds", "5 seeds", "levels of runs .4", "t noise", "noise .4", "wild seed", "equal")
KINDS: dict[str, Callable[[np.random.Generator], dict[str, Row]]] = {
    **{f"rates: {name}": partial(rate_study, grid=grid) for name, grid in GRIDS.items()},
    "rates: steep, 5 rates, noise .15, t noise": partial(
        rate_study, grid=replace(GRIDS["steep, 5 rates, noise .15"], is_heavy=True)
    ),
    "rates: symmetric, 5 rates, noise .15, one seed": partial(
        rate_study, grid=replace(GRIDS["symmetric, 5 rates, noise .15"], seeds=1)
    ),
    **{f"batches: {name}": partial(batch_study, world=WORLDS[name]) for name in _WORLDS},
    "targets: constant": target_study,
    "targets: constant, 5 seeds": partial(target_study, seeds=5),
    "targets: constant, noise .4": partial(target_study, noise=0.004),
    "targets: constant, t noise, every third epoch": partial(target_study, freedom=3.0, every=3),
    "targets: cosine": partial(target_study, schedule="cosine"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=100, help="of each kind")
    parser.add_argument("--only", nargs="*", default=[""], help="kinds with any of these words")
    parser.add_argument("--kept", type=Path, default=Path("answers.json"), help="studies done")
    options = parser.parse_args()
    kept = json.loads(options.kept.read_text()) if options.kept.exists() else {}
    for kind in (k for k in KINDS if any(word in k for word in options.only)):
        done = kept.setdefault(kind, [])
        for i in range(len(done), options.studies):
            done.append(KINDS[kind](np.random.default_rng([i, zlib.crc32(kind.encode())])))
            options.kept.write_text(json.dumps(kept))
        show(kind, done)


def show(kind: str, done: list[dict[str, Row]]) -> None:
    """Shares in per cent, and medians of widths and ratios."""
    for question in done[0] if done else ():
        table = pd.DataFrame([rows[question] for rows in done]).astype(float)
        cells = [
            f"{name} {table[name].median():.2g}" if name in ("width", "ratio")
            else f"{name} {100 * table[name].mean():.0f} %"
            for name in table if table[name].notna().any()
        ]  # fmt: skip
        print(f"| {kind} | {question} | {len(done)} | {', '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
