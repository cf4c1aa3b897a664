"""Bounds on a run's time as multiples of its prediction, from how much earlier runs varied."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sweeper.store.timings import Timing

#: With fewer runs than this, a tail of 1 in 20 cannot be estimated.
_LEAST_RUNS = 19
_FACTOR_UNTIL_THEN = 1.5


@dataclass(frozen=True, slots=True)
class Seen:
    """An ended run: its timing, its steps and epochs [count], and its whole time [seconds]."""

    timing: Timing
    steps: int
    epochs: int
    total_s: float


def bounds(found: Iterable[Sequence[Seen]]) -> tuple[float, float]:
    """Bounds on 9 in 10 ratios of a run's time to its prediction from others of its kind."""
    ratios: list[float] = []
    for seen in found:
        alike: dict[int, list[Seen]] = defaultdict(list)
        for run in seen:
            alike[run.timing.accumulation_steps].append(run)
        for runs in alike.values():
            ratios += _to_others(runs)
    ratios.sort()
    if len(ratios) < _LEAST_RUNS:
        return widened((min(ratios, default=1.0), max(ratios, default=1.0)))
    beyond = math.floor(0.05 * (len(ratios) + 1))
    return ratios[beyond - 1], ratios[-beyond]


def widened(factors: tuple[float, float]) -> tuple[float, float]:
    """Bounds for predictions that no earlier run supports, no narrower than these."""
    least, most = factors
    return min(least, 1 / _FACTOR_UNTIL_THEN), max(most, _FACTOR_UNTIL_THEN)


def _to_others(runs: Sequence[Seen]) -> list[float]:
    """Ratios of each run's time to its prediction by medians of the others; none for one run."""
    if len(runs) < 2:
        return []
    start_s = _medians_of_others([run.timing.start_s for run in runs])
    step_s = _medians_of_others([run.timing.step_s for run in runs])
    between_s = _medians_of_others([run.timing.between_s for run in runs])
    return [
        run.total_s / (start + run.steps * step + run.epochs * between)
        for run, start, step, between in zip(runs, start_s, step_s, between_s, strict=True)
    ]


def _medians_of_others(numbers: Sequence[float]) -> list[float]:
    """For each number, the median of the others."""
    last = len(numbers) - 1
    order = sorted(range(last + 1), key=lambda k: numbers[k])
    found = dict[int, float]()
    for i, k in enumerate(order):
        found[k] = sum(numbers[order[j + (j >= i)]] for j in ((last - 1) // 2, last // 2)) / 2
    return [found[k] for k in range(last + 1)]
