"""Simulated studies of accuracies by batch, from curves and noises that no estimator assumes."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from analysis.report.which_batch import compare_batches
from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.replicates import Array
from analysis.tables.metric import ACCURACY

MARGIN = 0.005


@dataclass(frozen=True)
class World:
    """Loss falls as a power of effective steps; accuracy follows from the loss.

    Spreads are standard deviations: of seeds' level and evaluations [accuracy], of seeds' speed
    [fraction]. A wild seed is off by 5 points at one batch, where also a tenth of runs fail.
    """

    seeds: int = 3
    batches: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    level: float = 0.0015
    speed: float = 0.02
    noise: float = 0.001
    spreads: tuple[float, ...] = (1, 1, 1, 1, 1)
    critical: float = 1500.0
    is_heavy: bool = False
    is_wild: bool = False
    is_shared: bool = True

    def accuracy(self, batch: Array, speed: Array | float = 1.0) -> Array:
        steps = 30 * speed / (1 + batch / self.critical)
        return np.exp(-(0.02 + 0.3569 * steps**-0.6))

    @property
    def breaks_at(self) -> float:
        first = self.batches[0]
        if not np.isfinite(self.critical):
            return np.inf
        lost = lambda b: self.accuracy(first) - self.accuracy(b) - MARGIN  # noqa: E731
        return brentq(lost, first, 1e7)

    def losses(self) -> Array:
        """How much less each batch's accuracy is than the best of the others'."""
        means = self.accuracy(np.array(self.batches, dtype=float))
        return np.array([np.delete(means, i).max() - means[i] for i in range(len(means))])

    def draw(self, rng: np.random.Generator) -> pd.DataFrame:
        batches = np.array(self.batches, dtype=float)
        shape = self.seeds, len(batches)
        per_seed = (self.seeds, 1) if self.is_shared else shape
        speed = np.exp(self.speed * rng.normal(size=per_seed)) * np.ones(shape)
        noise = rng.standard_t(3, shape) / 3**0.5 if self.is_heavy else rng.normal(size=shape)
        values = self.accuracy(batches, speed) + self.level * rng.normal(size=per_seed)
        values = values + self.noise * np.array(self.spreads)[: len(batches)] * noise
        outcome = np.full(shape, "finished", dtype=object)
        if self.is_wild:
            values[rng.integers(self.seeds), rng.integers(len(batches))] -= 0.05
            outcome[rng.random(shape) < 0.1] = "failed"
        frame = pd.DataFrame({
            "global_batch": np.tile(np.array(self.batches), self.seeds),
            "seed": np.repeat(np.arange(self.seeds), len(batches)),
            "val_accuracy": values.ravel(), "outcome": outcome.ravel(),
        })  # fmt: skip
        frame["val_accuracy"] = frame["val_accuracy"].mask(frame["outcome"] != "finished")
        return frame.assign(
            warmup_epochs=5.0, lr_rule="linear", base_lr=0.1, device_kind="simulated",
            examples_per_s=1000.0 * frame["global_batch"],
        )  # fmt: skip


_ODD = (96, 240, 700, 1100, 3000)
WORLDS = {
    "3 seeds": World(),
    "3 seeds, levels of runs": World(is_shared=False),
    "5 seeds": World(seeds=5),
    "5 seeds, levels of runs": World(seeds=5, is_shared=False),
    "noise .4": World(noise=0.004),
    "t noise": World(is_heavy=True),
    "t noise, 5 seeds": World(is_heavy=True, seeds=5),
    "wild seed": World(is_wild=True, seeds=5),
    "no powers of two": World(batches=_ODD),
    "levels .4": World(level=0.004),
    "levels of runs .4": World(level=0.004, is_shared=False),
    "equal": World(critical=np.inf),
    "equal, levels of runs": World(critical=np.inf, is_shared=False),
    "spreads 1:4": World(spreads=(1, 1, 1, 1, 4), is_shared=False, level=0),
    "spreads 4:1": World(spreads=(4, 1, 1, 1, 1), is_shared=False, level=0),
    "spreads 1:10": World(spreads=(1, 1, 1, 1, 10), is_shared=False, level=0),
    "spreads 10:1": World(spreads=(10, 1, 1, 1, 1), is_shared=False, level=0),
}


def judge_best(world: World, studies: int) -> dict[str, float]:
    """Width [accuracy] and coverage of families, and shares of studies with statements.

    `shown_false`: a batch is said to lose more than the margin and does not; `excluded_false`: all
    others are excluded as the best, and one is; `use_false`: the fastest batch whose mean is within
    the margin loses more than is said. Wild seeds stay in.
    """
    rng, rows = np.random.default_rng(11), []
    truth = dict(zip(world.batches, world.losses(), strict=True))
    for _ in range(studies):
        table = compare_batches(world.draw(rng), ACCURACY)
        true, low, high = (
            table["global_batch"].map(truth), table["at_least"], table["at_most"],
        )  # fmt: skip
        chosen = table.loc[table["loss"] <= MARGIN, "global_batch"].idxmax()
        rows.append({
            "width": (high - low).mean(), "covers": ((low <= true) & (true <= high)).all(),
            "shown_false": ((low > MARGIN) & (true < MARGIN)).any(),
            "excluded_false": ((high <= 0) & (true > 0)).any(),
            "use_false": high[chosen] < true[chosen], "risk_below_margin": high[chosen] < MARGIN,
        })  # fmt: skip
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def judge_break(world: World, studies: int) -> dict[str, float]:
    """Coverage of the break, median ratio of the interval's ends, share with one end."""
    rng = np.random.default_rng(11)
    found = [breaking_batch(world.draw(rng), rng, MARGIN, 300) for _ in range(studies)]
    held = [e.low <= world.breaks_at <= e.high for e in found]
    return {
        "covers": float(np.mean(held)),
        "ratio": float(np.median([e.high / e.low for e in found])),
        "one_sided": float(np.mean([np.isinf(e.high) for e in found])),
    }
