"""Simulated studies whose truth an estimate should find, or should refuse to name."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from simulated_verdicts import NOISES

from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.critical_batch import critical_batch, doubling_batch
from analysis.stats.laws import compare_rules, diffusion
from analysis.stats.optimum import best_lrs, best_warmups, exponent
from analysis.stats.pairs import compare
from analysis.stats.powers import batch_power, costs_between
from analysis.stats.replicates import Array, Estimate, Replicates
from analysis.stats.to_target import to_target

BATCHES = (3840, 7680, 15360, 30720, 61440)
REFUSED = Estimate(np.nan, np.nan, np.nan, 0, "", "refused")

#: From a generator, seeds a point and draws of the bootstrap to an estimate.
Study = Callable[[np.random.Generator, int, int], Estimate]


def replicates_with(mean: float, sd: float, n: int) -> Array:
    """Values with exactly this mean and standard deviation."""
    shape = np.linspace(-1, 1, n)
    return mean + sd * shape / shape.std(ddof=1)


def grid(
    batches: Sequence[int],
    settings: Sequence[float] | Callable[[int], Sequence[float]],
    seeds: int,
    column: str,
) -> pd.DataFrame:
    """Finished runs of a grid, without their metric; settings may depend on the batch."""
    of = settings if callable(settings) else lambda _: settings
    rows = [(b, s, seed) for b in batches for s, seed in product(of(b), range(seeds))]
    return pd.DataFrame(rows, columns=["global_batch", column, "seed"]).assign(outcome="finished")


def with_noise(
    runs: pd.DataFrame,
    accuracy: Array,
    spread: float,
    rng: np.random.Generator,
    noise: str = "normal",
    shared: float = 0.0,
) -> pd.DataFrame:
    """Accuracies with noise, a share of whose variance is the seed's, at every point alike."""
    of_seed = rng.normal(size=runs["seed"].max() + 1)[runs["seed"]]
    own = NOISES[noise]((len(runs),), rng)
    deviation = np.sqrt(shared) * of_seed + np.sqrt(1 - shared) * own
    return runs.assign(val_accuracy=np.asarray(accuracy) + spread * deviation)


def warmup_exponent(  # noqa: PLR0913
    rng: np.random.Generator,
    seeds: int,
    draws: int,
    *,
    noise: str = "normal",
    shared: float = 0.0,
    batches: Sequence[int] = BATCHES,
    warmups: Sequence[float] = (0, 2, 5, 10, 20, 40),
    flatness: float = 1.0,
    spread: float = 0.002,
    is_spoilt: bool = False,
) -> Estimate:
    """Best warmup 5 epochs at 7,680, growing as the square root of the batch."""
    runs = grid(batches, warmups, seeds, "warmup_epochs")
    best = 5.0 * (runs["global_batch"] / 7680) ** 0.5
    u = np.log(runs["warmup_epochs"] + 1) - np.log(best + 1)
    accuracy = 0.9 - 0.01 * u**2 * np.where(u > 0, flatness, 1)
    runs = with_noise(runs, accuracy, spread, rng, noise, shared)
    if is_spoilt:
        return without(exponent(best_warmups(spoil(runs, "val_accuracy", rng), rng, draws)))
    return exponent(best_warmups(runs, rng, draws))


def best_warmup(rng: np.random.Generator, seeds: int, draws: int, *, beyond: float) -> Estimate:
    """Best warmup 5 epochs at 7,680, one of four batches; at 20 epochs the spread is larger."""
    runs = grid(BATCHES[:4], (0, 5, 10, 20), seeds, "warmup_epochs")
    best = 5.0 * (runs["global_batch"] / 7680) ** 0.5
    accuracy = 0.9 - 0.01 * (np.log(runs["warmup_epochs"] + 1) - np.log(best + 1)) ** 2
    noise = np.where(runs["warmup_epochs"] == 20, beyond, 1) * rng.normal(size=len(runs))
    found = best_warmups(runs.assign(val_accuracy=accuracy + 0.001 * noise), rng, draws)
    row = found.table().iloc[1]
    return Estimate(row["best"], row["low"], row["high"], seeds, "")


def lr_runs(
    rng: np.random.Generator,
    best_lr: Callable[[float], float],
    noise: float = 0.003,
    seeds: int = 5,
) -> pd.DataFrame:
    """Five rates a factor of two apart around a rounded guess, at each batch."""
    factors = (0.25, 0.5, 1, 2, 4)
    runs = grid(BATCHES, lambda b: [f * round(best_lr(b), 1) for f in factors], seeds, "peak_lr")
    best = runs["global_batch"].map(best_lr)
    return with_noise(runs, 0.9 - 0.02 * np.log(runs["peak_lr"] / best) ** 2, noise, rng)


def lr_exponent(
    rng: np.random.Generator, seeds: int, draws: int, *, is_spoilt: bool = False
) -> Estimate:
    """Best rate 1 at 3,840, growing as the square root of the batch."""
    runs = lr_runs(rng, lambda b: (b / 3840) ** 0.5, seeds=seeds)
    if is_spoilt:
        return without(exponent(best_lrs(spoil(runs, "val_accuracy", rng), rng, draws)))
    return exponent(best_lrs(runs, rng, draws))


def lr_exponent_on_one_grid(rng: np.random.Generator, seeds: int, draws: int) -> Estimate:
    """One wide grid for every batch; too large a rate costs more than too small a one."""
    runs = grid(BATCHES, tuple(0.0625 * 2.0**i for i in range(9)), seeds, "peak_lr")
    u = np.log(runs["peak_lr"] / (runs["global_batch"] / 3840) ** 0.5)
    accuracy = np.maximum(0.9 - 0.02 * u**2 * np.where(u > 0, 3, 1), 0.7)
    return exponent(best_lrs(with_noise(runs, accuracy, 0.003, rng), rng, draws))


def saturating_bend(rng: np.random.Generator, seeds: int, draws: int) -> Estimate:
    """Best rate 4 / (1 + 20,000 / batch)."""
    runs = lr_runs(rng, lambda b: 4 / (1 + 20_000 / b), seeds=seeds)
    return _bend(runs, "saturating", rng, draws)


def surge_peak(rng: np.random.Generator, seeds: int, draws: int) -> Estimate:
    """Best rate highest at batch 20,000."""
    runs = lr_runs(
        rng, lambda b: 4 / (0.5 * ((20_000 / b) ** 0.5 + (b / 20_000) ** 0.5)), seeds=seeds
    )
    return _bend(runs, "surge", rng, draws)


def _bend(runs: pd.DataFrame, rule: str, rng: np.random.Generator, draws: int) -> Estimate:
    optima = best_lrs(runs, rng, draws)
    return compare_rules(optima).bends[rule]


def breaking_of(
    rng: np.random.Generator,
    seeds: int,
    draws: int,
    *,
    batches: Sequence[int],
    law: Callable[[Array], Array],
    noise: str = "normal",
    is_spoilt: bool = False,
) -> Estimate:
    """Where a law of log2(batch / 256) has lost 0.5 points."""
    runs = grid(batches, (5.0,), seeds, "warmup_epochs")
    accuracy = 0.76 - law(np.log2(runs["global_batch"].to_numpy(dtype=float) / 256))
    runs = with_noise(runs, accuracy, 0.0012, rng, noise)
    if is_spoilt:
        return without(breaking_batch(spoil(runs, "val_accuracy", rng), rng, 0.005, draws))
    return breaking_batch(runs, rng, 0.005, draws)


def hinge(doublings: Array) -> Array:
    """Flat up to 8,192, then 0.4 points lost per doubling: 0.5 points at 8,192 * 2**1.25."""
    return 0.004 * np.maximum(0.0, doublings - 5)


def smooth(doublings: Array) -> Array:
    """0.5 points lost at 8,192 * 2**1.25, a fall that grows with the batch."""
    return 0.005 * (2.0 ** (0.8 * (doublings - 6.25)) - 2.0 ** (0.8 * -6.25))


def cliff(doublings: Array) -> Array:
    """Flat up to 8,192 * 2**1.25, where 5 points are lost at once."""
    return 0.05 * (doublings >= 6.25)


def spoil(
    runs: pd.DataFrame, column: str, rng: np.random.Generator, sides: Sequence[int] = (-1, 1)
) -> pd.DataFrame:
    """With one seed off by 20 to 200 of its point's spreads, to any of these sides."""
    by = [name for name in runs if name not in ("seed", "outcome", "reached_target", column)]
    spread = runs.groupby(by)[column].transform("std").median()
    away = spread * np.exp(rng.uniform(np.log(20), np.log(200))) * rng.choice(sides)
    is_spoilt = runs.index == rng.choice(runs.index)
    return runs.assign(**{column: runs[column] + away * is_spoilt})


def without(found: Estimate) -> Estimate:
    """The estimate without the wild seed, which must be named."""
    return found.without or REFUSED


def critical(
    rng: np.random.Generator,
    seeds: int,
    _: int,
    *,
    growth: float = 1.0,
    spread: float = 0.02,
    tuning: float = 0.0,
    every: float = 0.0,
    is_spoilt: bool = False,
) -> Estimate:
    """Examples to target 30 million + 900 steps * batch, 2 % noise, at the largest batch more.

    With tuning every batch is off the law by as much, at all seeds alike; a target may be looked
    for only every so many examples.
    """
    batches = np.array([2048, 4096, 8192, 16384, 32768, 65536])
    runs = grid([int(b) for b in batches], (0.0,), seeds, "warmup_epochs")
    of_batch = dict(zip(batches, np.exp(tuning * rng.normal(size=len(batches))), strict=True))
    spread = spread * growth ** (np.log2(runs["global_batch"] / 2048) / 5)
    examples = (3e7 + 900 * runs["global_batch"]) * (1 + spread * rng.normal(size=len(runs)))
    examples *= runs["global_batch"].map(of_batch)
    examples = every * np.round(examples / every) if every else examples
    reached = runs.assign(examples_to_target=examples, reached_target=True)
    if is_spoilt:
        reached = spoil(reached, "examples_to_target", rng, (1,))
    found = critical_batch(reached).critical_batch
    return without(found) if is_spoilt else found


def power_of_settings(rng: np.random.Generator, *_: int) -> Estimate:
    """Rates that grow as the square root of six batches, each off by a heavy-tailed 20 %."""
    batches = np.array([2048, 4096, 8192, 16384, 32768, 65536.0])
    off = NOISES["heavy-tailed"]((len(batches),), rng)
    return batch_power(batches, batches**0.5 * np.exp(0.2 * off))


def cost_between(rng: np.random.Generator, seeds: int, _: int) -> Estimate:
    """Three times as many examples at four times the batch, heavy-tailed noise of 2 and 8 %."""
    noise = NOISES["heavy-tailed"]((2, seeds), rng) * [[0.02], [0.08]]
    points = pd.DataFrame({"global_batch": [256, 1024]})
    cells = Replicates(points, tuple(np.array([[1e6], [3e6]]) * (1 + noise)))
    row = costs_between(cells).iloc[0]
    return Estimate(row["cost"], row["low"], row["high"], seeds, "")


def doubling(
    rng: np.random.Generator, seeds: int, _: int, *, sharpness: float = 1.0, is_spoilt: bool = False
) -> Estimate:
    """Examples twice the smallest batch's at 32,768; the sharper, the less like a hyperbola."""
    batches = [512 * 4**i for i in range(5)]
    runs = grid(batches, (0.0,), seeds, "warmup_epochs")
    power = (runs["global_batch"] / 512) ** sharpness - 1
    law = 3e7 * (1 + power / (64**sharpness - 1))
    reached = runs.assign(
        examples_to_target=law * (1 + 0.05 * rng.normal(size=len(runs))), reached_target=True
    )
    if is_spoilt:
        return without(doubling_batch(spoil(reached, "examples_to_target", rng, (1,))))
    return doubling_batch(reached)


def critical_of_curves(
    rng: np.random.Generator, seeds: int, _: int, *, epochs: float, spread: float = 0.02
) -> Estimate:
    """The same through curves that saturate; so many epochs to the target at the smallest batch.

    Without spread all seeds are alike, and a study has up to twice as many epochs.
    """
    num_examples = (3e7 + 900 * 2048) / (epochs if spread else epochs * rng.uniform(1, 2))
    batches = [2048 * 2**i for i in range(6)]
    runs = grid(batches, (0.0,), seeds, "warmup_epochs")
    runs["run_id"] = [f"{i:012x}" for i in range(len(runs))]
    need = (3e7 + 900 * runs["global_batch"]) * (1 + spread * rng.normal(size=len(runs)))
    count = int(np.ceil(1.3 * need.max() / num_examples))
    epoch = np.tile(np.arange(1, count + 1), len(runs))
    seen = epoch * num_examples
    # 0.8 of the final accuracy where as many examples were seen as are needed
    accuracy = 1 - 0.2 ** (seen / np.repeat(need.to_numpy(), count))
    curves = pd.DataFrame(
        {"run_id": np.repeat(runs["run_id"].to_numpy(), count), "epoch": epoch,
         "step": seen / np.repeat(runs["global_batch"].to_numpy(), count),
         "examples_seen": seen, "val_accuracy": accuracy}
    )  # fmt: skip
    try:
        return critical_batch(to_target(runs, curves, 0.8)).critical_batch
    except ValueError:
        return REFUSED


def walk(rng: np.random.Generator, law: Callable[[Array], Array], seeds: int = 5) -> pd.DataFrame:
    """Seeds of a law, each with its own factor and a slow random drift."""
    step = np.unique(np.geomspace(1, 10_000, 80).astype(int))
    of_seeds = []
    for seed in range(seeds):
        drift = np.exp(0.01 * np.cumsum(rng.normal(size=len(step))))
        distance = (1 + 0.1 * rng.normal()) * law(step) * drift
        of_seeds.append(pd.DataFrame({"seed": seed, "step": step, "distance": distance}))
    return pd.concat(of_seeds)


def diffusion_power(rng: np.random.Generator, seeds: int, draws: int) -> Estimate:
    """Distance from the start grows as step**0.35."""
    return diffusion(walk(rng, lambda t: t**0.35, seeds), rng, 2 * draws // 5).power


def difference(
    rng: np.random.Generator,
    seeds: int,
    _: int,
    *,
    shift: float = 0.005,
    other: float = 0.003,
    is_spoilt: bool = False,
) -> Estimate:
    """Two arms, apart by a shift, the spread of one 0.002."""
    arms = rng.normal(0.76 + shift, 0.002, seeds), rng.normal(0.76, other, seeds)
    if is_spoilt:
        arms[0][0] += 0.3
        return without(compare(*arms).difference)
    return compare(*arms).difference


_DOUBLINGS = [256 * 2**i for i in range(9)]
_FIVE = [256 * 4**i for i in range(5)]
_BREAK = 8192 * 2**1.25
_exact_smooth = 256 * 2.0 ** (6.25 + np.log2(1 + 2.0 ** (0.8 * -6.25)) / 0.8)

#: Each kind of study with its truth.
KINDS: dict[str, tuple[Study, float]] = {
    "warmup exponent, normal": (warmup_exponent, 0.5),
    "warmup exponent, heavy-tailed": (partial(warmup_exponent, noise="heavy-tailed"), 0.5),
    "warmup exponent, bad seed": (partial(warmup_exponent, noise="bad seed"), 0.5),
    "warmup exponent, seeds shared": (partial(warmup_exponent, shared=0.8), 0.5),
    "warmup exponent, wild seed": (
        partial(warmup_exponent, noise="heavy-tailed", is_spoilt=True), 0.5,
    ),
    "warmup exponent, upper edge": (partial(warmup_exponent, warmups=(0, 2, 5, 10, 15)), 0.5),
    "warmup exponent, lower edge": (partial(warmup_exponent, warmups=(3, 5, 10, 20, 40)), 0.5),
    "warmup exponent, 2 x 4 grid": (
        partial(warmup_exponent, batches=(7680, 30720), warmups=(0, 5, 10, 20)), 0.5,
    ),
    "warmup exponent, one side 1.33 times flatter": (partial(warmup_exponent, flatness=0.75), 0.5),
    "warmup exponent, one side 1.33 times steeper": (partial(warmup_exponent, flatness=1.33), 0.5),
    "warmup exponent, one side 2 times flatter": (
        partial(warmup_exponent, flatness=0.5, spread=0.005), 0.5,
    ),
    "warmup exponent, flat branch": (partial(warmup_exponent, flatness=0.25), 0.5),
    "best warmup of a batch": (partial(best_warmup, beyond=1.0), 5.0),
    "best warmup of a batch, one spread 10 times": (partial(best_warmup, beyond=10.0), 5.0),
    "rate exponent, centred grids": (lr_exponent, 0.5),
    "rate exponent, wild seed": (partial(lr_exponent, is_spoilt=True), 0.5),
    "rate exponent, one wide grid": (lr_exponent_on_one_grid, 0.5),
    "bend of the saturating rule": (saturating_bend, 20_000),
    "peak of the surge": (surge_peak, 20_000),
    "breaking batch, hinge": (partial(breaking_of, batches=_DOUBLINGS, law=hinge), _BREAK),
    "breaking batch, smooth, 5 batches": (
        partial(breaking_of, batches=_FIVE, law=smooth), _exact_smooth,
    ),
    "breaking batch, cliff, 5 batches": (
        partial(breaking_of, batches=_FIVE, law=cliff), _BREAK,
    ),
    "breaking batch, wild seed": (
        partial(breaking_of, batches=_FIVE, law=smooth, noise="heavy-tailed", is_spoilt=True),
        _exact_smooth,
    ),
    "critical batch, exact": (critical, 3e7 / 900),
    "critical batch, spread grows 5 times": (partial(critical, growth=5.0), 3e7 / 900),
    "critical batch, batches tuned unequally": (partial(critical, tuning=0.04), 3e7 / 900),
    "critical batch, looked for 10 times": (partial(critical, every=3e6, spread=0.03), 3e7 / 900),
    "critical batch, looked for 10 times, little spread": (
        partial(critical, every=3e6, spread=0.01), 3e7 / 900,
    ),
    "critical batch, wild seed": (partial(critical, is_spoilt=True), 3e7 / 900),
    "critical batch, 15 epochs and more": (partial(critical_of_curves, epochs=15), 3e7 / 900),
    "critical batch, 4 epochs and more": (partial(critical_of_curves, epochs=4.5), 3e7 / 900),
    "critical batch, 4 epochs and more, seeds alike": (
        partial(critical_of_curves, epochs=4.5, spread=0.0), 3e7 / 900,
    ),
    "critical batch, 2 epochs and more": (partial(critical_of_curves, epochs=2), 3e7 / 900),
    "doubling batch, hyperbola": (doubling, 32_768),
    "doubling batch, wild seed": (partial(doubling, is_spoilt=True), 32_768),
    "doubling batch, sharp bend": (partial(doubling, sharpness=3.0), 32_768),
    "doubling batch, slow bend": (partial(doubling, sharpness=0.4), 32_768),
    "power of settings, tuned unequally": (power_of_settings, 0.5),
    "cost of a doubling, spreads 1:4": (cost_between, 3**0.5 - 1),
    "exponent of the distance": (diffusion_power, 0.35),
    "difference, equal arms": (partial(difference, shift=0.0, other=0.002), 0.0),
    "difference, wild seed": (partial(difference, is_spoilt=True), 0.005),
    "difference, spreads 1:4": (partial(difference, other=0.008), 0.005),
}  # fmt: skip


def coverage(kind: str, *, studies: int, draws: int, seeds: int = 5) -> tuple[float, float, float]:
    """Shares of the studies that are refused, and of the others whose interval holds the truth.

    Returns:
        Both, and the median estimate.
    """
    study, truth = KINDS[kind]
    rng = np.random.default_rng([seeds, *kind.encode()])
    found = [study(rng, seeds, draws) for _ in range(studies)]
    valued = [e for e in found if not np.isnan(e.value)]
    held = np.mean([e.low <= truth <= e.high for e in valued]) if valued else np.nan
    median = np.median([e.value for e in valued]) if valued else np.nan
    return 1 - len(valued) / studies, float(held), float(median)
