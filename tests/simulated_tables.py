"""Simulated tables of runs of several sizes, one seed a point, whose laws are known.

Responses are no parabolas in the logarithms but for the first, and noises have heavy tails.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.report.any_runs import judge_table
from analysis.stats.replicates import Array

#: Names of the laws, and what they are in these tables.
TRUTH = {
    "best_batch_data": 0.6, "best_batch_size": -0.3, "best_rate_data": 0.2,
    "best_rate_size": -0.7, "best_rate_batch": 0.4,
}  # fmt: skip
SIZE, DATA, BATCH, RATE = 4e8, 2e10, 256.0, 2e-3

#: What is lost by a batch and a rate, by the logarithms of how many times the best they are.
Loss = Callable[[Array, Array], Array]


def parabola(batch: Array, rate: Array) -> Array:
    return 0.012 * batch**2 + 0.02 * rate**2


def steep(batch: Array, rate: Array) -> Array:
    """Beyond the best both cost more than below it."""
    u = np.abs(batch) * np.where(batch > 0, 0.96, 0.64)
    above, below = rate**2 * (1 + 0.8 * rate), 0.6 * rate**2 / (1 + 0.2 * np.abs(rate))
    return 0.03 * (np.expm1(u) - u) + 0.02 * np.where(rate > 0, above, below)


def bent(batch: Array, rate: Array) -> Array:
    """A parabola on each side of the best, two to three times as steep above it."""
    sides = 0.012 * batch**2 * np.where(batch > 0, 1.5, 0.7)
    return sides + 0.02 * rate**2 * np.where(rate > 0, 2, 0.6)


def _steps_and_noise(u: Array) -> Array:
    return np.log1p(np.exp(1.5 * u)) - 0.5 * np.log1p(np.exp(u)) + 0.25 * np.log1p(np.exp(-2 * u))


_U = np.linspace(-4, 4, 4001)
_LEAST = _U[_steps_and_noise(_U).argmin()]


def valley(batch: Array, rate: Array) -> Array:
    """Straight far from the best batch, and exponential above the best rate."""
    of_batch = _steps_and_noise(batch + _LEAST) - _steps_and_noise(_LEAST)
    return 0.04 * of_batch + 0.02 * (np.expm1(rate) - rate)


def flat(batch: Array, rate: Array) -> Array:
    """Neither matters."""
    return 0 * batch * rate


@dataclass(frozen=True)
class Table:
    """A grid over batch and rate at each of several sizes and amounts of data.

    Attributes:
        loss: of batch and rate.
        noise: standard deviation of a run; the loss is about 2.7.
        is_heavy: whether it is Student's with three degrees of freedom.
        off: standard deviation of each cell's best off the laws, of the logarithm.
        deepens: by what power of the data the loss grows.
        points: batches, and rates, of each cell.
        truth: the powers, in the order of `TRUTH`.
    """

    loss: Loss = parabola
    noise: float = 0.004
    is_heavy: bool = False
    off: float = 0.0
    deepens: float = 0.0
    points: int = 8
    truth: tuple[float, ...] = tuple(TRUTH.values())

    def draw(self, rng: np.random.Generator) -> pd.DataFrame:
        """Columns batch, lr, loss, size, data; beyond 10 times the best rate it diverged."""
        data = np.array([4e9, 1e10, 3e10, 8e10])
        rows = [(s, d) for s in (2e8, 4e8, 8e8) for d in data * (2e8 / s) ** 0.3]
        x, y, v, u, w = self.truth
        steps = 2.0 ** (np.arange(self.points) - (self.points - 1) // 2)
        batches, rates = np.meshgrid(BATCH * steps, RATE * steps)
        frames = []
        for size, of_data in rows:
            n, d, off = np.log(size / SIZE), np.log(of_data / DATA), self.off * rng.normal(size=2)
            batch = np.log(batches.ravel() / BATCH)
            rate = np.log(rates.ravel() / RATE) - v * d - u * n - w * batch - off[1]
            batch = batch - x * d - y * n - off[0]
            noise = (
                rng.standard_t(3, rate.size) / 3**0.5
                if self.is_heavy
                else (rng.normal(size=rate.size))
            )
            level = 1.8 + 0.45 * (size / SIZE) ** -0.1 + 0.5 * (of_data / DATA) ** -0.15
            lost = self.loss(batch, rate) * (of_data / DATA) ** self.deepens
            loss = np.where(rate > 2.3, np.inf, level + lost + self.noise * noise)
            of = {"batch": batches.ravel(), "lr": rates.ravel(), "loss": loss}
            frames.append(pd.DataFrame({**of, "size": size, "data": of_data}))
        return pd.concat(frames, ignore_index=True)


def covers(table: Table, rng: np.random.Generator) -> tuple[list[bool], float]:
    """Whether each power's interval has the truth, none without an answer; the width for data."""
    found = {answer.name: answer for answer in judge_table(table.draw(rng))}
    answers = [found[f"{name}_exponent"] for name in TRUTH]
    if not all(answer.has_answer for answer in answers):
        return [], np.nan
    pairs = zip(answers, table.truth, strict=True)
    held = [answer.low <= truth <= answer.high for answer, truth in pairs]
    return held, answers[0].high - answers[0].low


def claims(frame: pd.DataFrame) -> list[bool]:
    """Whether a table is said to have a law, by question."""
    found = {answer.name: answer for answer in judge_table(frame)}
    answers = [found[f"{name}_exponent"] for name in TRUTH]
    return [answer.has_answer and not answer.low <= 0 <= answer.high for answer in answers]


#: By name, tables whose laws are to be covered.
KINDS = {
    "parabola": Table(),
    "parabola, much noise": Table(noise=0.015, is_heavy=True),
    "steep above": Table(steep),
    "steep above, heavy tails": Table(steep, is_heavy=True),
    "steep above, much noise": Table(steep, noise=0.015, is_heavy=True),
    "steep above, tuned unequally": Table(steep, noise=0.002, off=0.1),
    "two parabolas, deeper with data": Table(bent, deepens=0.3),
    "two parabolas, deeper with data, heavy tails": Table(bent, is_heavy=True, deepens=0.3),
    "two parabolas, deeper with data, no noise": Table(bent, noise=0.0005, deepens=0.3),
    "valley": Table(valley, is_heavy=True),
    "valley, tuned unequally": Table(valley, noise=0.002, off=0.1),
    "steep above, five by five": Table(steep, noise=0.002, points=5),
    "valley, no noise": Table(valley, noise=0.0005),
}


def shuffled(rng: np.random.Generator, what: str) -> pd.DataFrame:
    """A table of which no law is left: losses shuffled, or which size and data a cell has."""
    frame = Table(steep, is_heavy=True).draw(rng)
    if what == "loss":
        return frame.assign(loss=rng.permutation(frame["loss"].to_numpy()))
    cells = frame[["size", "data"]].drop_duplicates()
    places = rng.permutation(len(cells))[np.repeat(np.arange(len(cells)), 64)]
    return frame.assign(**{c: cells[c].to_numpy()[places] for c in cells})
