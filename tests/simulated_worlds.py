"""Simulated training whose critical batch is known: full frames of runs and curves."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from simulated_studies import simulated_runs, with_settings

from analysis.stats.replicates import Array

NUM_EXAMPLES = 51_200
BATCHES = (128, 256, 512, 1024, 2048)
CRITICAL = 1500.0

#: Schedules by name: the factor on the rate at a fraction of the training.
FACTORS: dict[str, Callable[[Array], Array]] = {
    "constant": np.ones_like,
    "cosine": lambda at: (1 + np.cos(np.pi * at)) / 2,
    "linear_decay": lambda at: 1 - at,
    "periodic_decay": lambda at: 0.1 ** ((at > 0.5).astype(float) + (at > 0.75)),
    "wsd": lambda at: 1 - np.sqrt(np.clip((at - 0.8) / 0.2, 0, 1)),
    "growing_batch": np.ones_like,
}


def hyperbola(batch: Array) -> Array:
    """Examples to a level grow as ``1 + batch / CRITICAL``."""
    return batch + CRITICAL


def bend(batch: Array) -> Array:
    """They stay the same up to a batch of 600 and are in proportion to it from there."""
    return 1500.0 * np.maximum(1, batch / 600)


def root(batch: Array) -> Array:
    """They grow as ``1 + (batch / 1500)**0.5``."""
    return 900.0 * (1 + (batch / 1500) ** 0.5)


def reached_by(
    rng: np.random.Generator,
    batches: Sequence[int],
    seeds: int,
    *,
    factor: float = 1.0,
    noise: float = 0.05,
) -> pd.DataFrame:
    """A table of examples to a target that grow as ``factor * (1 + batch / 2000)``."""
    rows = [
        (b, s, factor * (1 + b / 2000) * rng.normal(1, noise))
        for b in batches
        for s in range(seeds)
    ]
    frame = pd.DataFrame(rows, columns=["global_batch", "seed", "examples_to_target"])
    return frame.assign(reached_target=True)


def train(  # noqa: PLR0913
    rng: np.random.Generator,
    *,
    batches: Sequence[int] = BATCHES,
    seeds: int = 3,
    lengths: Sequence[int] = (30,),
    level: float = 0.0015,
    speed: float = 0.02,
    noise: float = 0.001,
    freedom: float = np.inf,
    every: int = 1,
    schedule: str = "constant",
    warmup: int = 0,
    is_wild: bool = False,
    cost: Callable[[Array], Array] = hyperbola,
    peak: float = 0.8,
    overfits: float = 0.0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Accuracy rises as a power of the effective steps, and as the rate falls.

    Args:
        rng: of all noise.
        batches: global batches [examples].
        seeds: replicates of a batch.
        lengths: of the runs, one each [epochs].
        level: standard deviation of a seed's accuracy at all evaluations [0 to 1].
        speed: of its examples to any accuracy [fraction].
        noise: of an evaluation [0 to 1].
        freedom: degrees of freedom of level and noise; infinite: normal.
        every: epochs between evaluations.
        schedule: one of `FACTORS`.
        warmup: epochs in which the rate climbs.
        is_wild: whether one seed is 20 points worse.
        cost: examples for an effective step, by batch.
        peak: accuracy that is approached [0 to 1].
        overfits: accuracy lost after two thirds of the training, per training [0 to 1].
    """
    runs = pd.concat(
        [simulated_runs(batches, [warmup], seeds, accuracy=lambda *_: 0.0, epochs=e)
         for e in lengths], ignore_index=True,
    )  # fmt: skip
    batch = runs["global_batch"].to_numpy(float)
    per_epoch = NUM_EXAMPLES // runs["global_batch"]
    each = [{"epochs": length} for length in runs["epochs"].tolist()]
    runs = with_settings(runs, each, schedule={"name": schedule})

    def draw(*shape: int) -> Array:
        z = rng.normal(size=shape)
        if np.isinf(freedom):
            return z
        return z / np.sqrt(rng.chisquare(freedom, shape) / freedom) * np.sqrt(1 - 2 / freedom)

    longest = max(lengths)
    epoch = np.arange(every, longest + 1, every)
    at = epoch / runs["epochs"].to_numpy(float)[:, None]
    is_run = at <= 1
    factor = FACTORS[schedule](np.minimum(at, 1)) * np.minimum(1, epoch / max(1, warmup))
    pace = np.exp(speed * rng.normal(size=len(runs)))
    done = epoch * NUM_EXAMPLES * (pace / cost(batch))[:, None]
    accuracy = peak - 0.25 * (done / 100) ** -0.6 - 0.04 * factor
    accuracy -= overfits * np.maximum(0, at - 2 / 3)
    accuracy += level * draw(len(runs), 1) + noise * draw(len(runs), len(epoch))
    if is_wild:
        accuracy[rng.integers(len(runs))] -= 0.2
    row, column = np.nonzero(is_run)
    step = epoch[column] * per_epoch.to_numpy()[row]
    curves = pd.DataFrame({
        "run_id": [f"{i:012x}" for i in row], "attempt": 1, "epoch": epoch[column], "step": step,
        "examples_seen": step * runs["global_batch"].to_numpy()[row],
        "lr": 0.1 * factor[row, column], "train_loss": 1 - accuracy[row, column],
        "val_loss": 1 - accuracy[row, column], "val_accuracy": accuracy[row, column],
        "distance_from_start": np.log1p(step), "elapsed_s": epoch[column].astype(float),
    })  # fmt: skip
    final = accuracy[np.arange(len(runs)), is_run.sum(1) - 1]
    runs = runs.assign(
        run_id=[f"{i:012x}" for i in range(len(runs))], steps_per_epoch=per_epoch,
        steps=per_epoch * runs["epochs"], num_train_examples=NUM_EXAMPLES, base_lr=0.1,
        val_accuracy=final, best_val_accuracy=final, val_loss=1 - final, peak_lr=0.1,
        lr_series_hash=[f"{b}-{e}" for b, e in zip(batch, runs["epochs"], strict=True)],
    )  # fmt: skip
    return runs, curves
