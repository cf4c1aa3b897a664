"""Simulated grids over the learning rate, from responses and noises that no estimator assumes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import expit
from simulated_accuracies import World
from simulated_studies import simulated_runs, with_settings

from analysis.stats.laws import compare_rules
from analysis.stats.optimum import Optima, best_lrs, exponent
from analysis.stats.replicates import Array, Estimate

BATCHES = (128, 256, 512, 1024, 2048)
CENTRE = 512  # the batch whose best rate is the base rate
BASE_LR = 0.1

#: Accuracy lost [0 to 1] by a rate that is so many times the best, by the logarithm of that.
Loss = Callable[[Array], Array]


def arch(u: Array) -> Array:
    """Alike on both sides: round at the best, straight far from it; 1.3 points at 4 times."""
    return 0.018 * (np.sqrt(1 + u**2) - 1)


def steep(u: Array) -> Array:
    """Too small a rate gets less far, too large a one is noisy and, at 5 times, diverges.

    A power of the rate, and noise as of gradient descent on a parabola: 0.4 points at half the
    best, 0.7 at twice, 10 at 4 times.
    """
    times = np.minimum(np.exp(u), 4.9)
    got, noise = times**-0.6 / 0.6 / 0.8**2, times / (1 - times / 5)
    return 0.006 * (got + noise - 1 / 0.6 / 0.8**2 - 1 / 0.8)


def cusp(u: Array) -> Array:
    """Rises slowly below the best, levels off far from it, and bends sharply at the best."""
    above = 0.004 * np.expm1(1.8 * np.clip(u, 0, 2.5) ** 1.5)
    return np.where(u < 0, 0.008 * -np.expm1(-0.8 * u**2), above)


def flat(u: Array) -> Array:
    """No rate is better than another."""
    return 0 * u


@dataclass(frozen=True)
class Grid:
    """A grid over the rate, round a guess of each batch's best, and what the truth is.

    Attributes:
        loss: of the rate, at all batches.
        power: of the batch, which the best rate follows.
        rates: at each batch.
        factor: between neighbours.
        guess: exponent by which the grid moves with the batch.
        seeds: of each point.
        noise: standard deviation of a run [accuracy].
        level: of what a seed does to all of its runs [accuracy].
        diverges_at: how many times the best rate half of the runs diverge at; the others do so by
            a logistic of .15 in the logarithm.
        is_heavy: whether the noise is Student's with three degrees of freedom.
        off: standard deviation of each batch's best off its power, of the logarithm.
        deepens: by what power of the batch the losses grow: shapes that differ.
        batches: of the grid.
    """

    loss: Loss = arch
    power: float = 0.5
    rates: int = 5
    factor: float = 2.0
    guess: float = 0.5
    seeds: int = 3
    noise: float = 0.0015
    level: float = 0.0015
    diverges_at: float = np.inf
    is_heavy: bool = False
    off: float = 0.0
    deepens: float = 0.0
    batches: tuple[int, ...] = BATCHES

    def following(self, power: float) -> "Grid":
        """With another truth, whose grid was guessed half way to the square root."""
        return replace(self, power=power, guess=(power + 0.5) / 2)

    def accuracy(self, batch: Array, times: Array) -> Array:
        """Expected, at so many times the best rate."""
        loss = self.loss(np.log(times)) * (batch / CENTRE) ** self.deepens
        return World(critical=6000.0).accuracy(batch) - np.minimum(loss, 0.6)

    def table(self) -> pd.DataFrame:
        """A row per run, without what was measured: its batch, rate and seed."""
        steps = self.factor ** (np.arange(self.rates) - (self.rates - 1) / 2)
        frame = pd.MultiIndex.from_product(
            [self.batches, steps, range(self.seeds)], names=["global_batch", "step", "seed"]
        ).to_frame(index=False)
        rate = BASE_LR * frame["step"] * (frame["global_batch"] / CENTRE) ** self.guess
        return frame.assign(peak_lr=rate.map(lambda r: float(f"{r:.3g}")))

    def draw(self, rng: np.random.Generator) -> pd.DataFrame:
        """Runs with `outcome` and `val_accuracy`."""
        frame = self.table()
        batch, seed = frame["global_batch"].to_numpy(float), frame["seed"].to_numpy()
        apart = dict(zip(self.batches, self.off * rng.normal(size=len(self.batches)), strict=True))
        best = BASE_LR * (batch / CENTRE) ** self.power * np.exp(frame["global_batch"].map(apart))
        times = (frame["peak_lr"] / best).to_numpy()
        noise = rng.standard_t(3, len(frame)) / 3**0.5 if self.is_heavy else (
            rng.normal(size=len(frame))
        )  # fmt: skip
        values = self.accuracy(batch, times) + self.noise * noise
        values += self.level * rng.normal(size=self.seeds)[seed]
        chance = expit((np.log(times) - np.log(self.diverges_at)) / 0.15)
        is_lost = rng.random(len(frame)) < chance
        return frame.assign(
            outcome=np.where(is_lost, "diverged", "finished"),
            val_accuracy=np.where(is_lost, np.nan, values),
        ).drop(columns="step")

    def runs(self, rng: np.random.Generator) -> pd.DataFrame:
        """As the table of a results folder has them."""
        drawn = self.draw(rng)
        of_seed = [*range(len(drawn) // len(self.batches))]
        runs = simulated_runs(self.batches, [5], len(of_seed), accuracy=lambda *_: 0.0)
        names = [f"{b}-{r}" for b, r in zip(drawn["global_batch"], drawn["peak_lr"], strict=True)]
        own = drawn[["peak_lr", "seed"]].rename(columns={"peak_lr": "base_lr"}).to_dict("records")
        return with_settings(runs, own).assign(
            **drawn, base_lr=drawn["peak_lr"], best_val_accuracy=drawn["val_accuracy"],
            lr_series_hash=names,
            examples_per_s=1000.0 * runs["global_batch"], device_kind="simulated",
        )  # fmt: skip

    def highest(self) -> dict[int, float]:
        """Of each batch, the highest expected accuracy of the rates that were run."""
        frame = self.table()
        batch = frame["global_batch"].to_numpy(float)
        times = frame["peak_lr"].to_numpy() / BASE_LR / (batch / CENTRE) ** self.power
        values = pd.Series(self.accuracy(batch, times)).where(times < self.diverges_at)
        return values.groupby(frame["global_batch"]).max().to_dict()


STEEP = Grid(loss=steep, diverges_at=4.0)
CUSP = Grid(loss=cusp, diverges_at=4.0)
GRIDS = {
    f"{name}, {rates} rates, noise {noise}": replace(
        grid, rates=rates, factor=factor, noise=float(noise) / 100
    )
    for name, grid in (("symmetric", Grid()), ("steep", STEEP), ("cusp", CUSP))
    for rates, factor in ((5, 2.0), (3, 3.0))
    for noise in (".15", ".4")
}
RULES = {0.0: "none", 0.5: "sqrt", 1.0: "linear"}


@dataclass(frozen=True)
class Asked:
    """What was answered of a study: the exponent, the rules that are left, the fits."""

    found: Estimate
    left: list[str]
    optima: Optima


def ask(grid: Grid, rng: np.random.Generator) -> Asked:
    """Draw a study and ask it for the exponent and for rules."""
    optima = best_lrs(grid.draw(rng), rng, 100)
    return Asked(exponent(optima), compare_rules(optima).not_excluded, optima)


def judge(grid: Grid, studies: int, seed: int = 0) -> dict[str, float]:
    """Shares of studies: answered on both sides, covered if so, told apart, false; median width."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(studies):
        power = [*RULES][i % 3]
        asked = ask(grid.following(power), rng)
        ends = np.array([asked.found.low, asked.found.high])
        is_answered = np.isfinite(ends).all()
        rows.append({
            "answered": is_answered, "width": ends[1] - ends[0] if is_answered else np.nan,
            "covers": np.nan if not is_answered else ends[0] <= power <= ends[1],
            "told apart": asked.left == [RULES[power]],
            "false": bool(asked.optima.response) and RULES[power] not in asked.left,
        })  # fmt: skip
    table = pd.DataFrame(rows).astype(float)
    return {**table.mean().to_dict(), "width": table["width"].median()}
