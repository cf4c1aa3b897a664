"""The statements of McCord & Dash 2021 as predicates on the table."""

from collections.abc import Sequence

import numpy as np

from analysis.papers.design import Point
from analysis.papers.mccord2021 import BATCHES, WARMUPS
from analysis.papers.verdict import Claim, Effect, difference
from analysis.stats.replicates import Array

#: Differences of accuracy smaller than this do not matter [accuracy, 0 to 1].
MARGIN = 0.003
LOSS_MARGIN = 0.02


def _warmups(batch: int) -> list[Point]:
    return [Point(batch, w, "linear") for w in WARMUPS]


def _falls_with_batch(means: Array) -> Array:
    x = np.log2(np.array(BATCHES, dtype=float))
    x -= x.mean()
    return -(means @ x) / (x @ x)


def _none_is_worst(means: Array) -> Array:
    return means[:, 1:].min(axis=1) - means[:, 0]


def _is_best(index: int) -> Effect:
    def effect(means: Array) -> Array:
        return means[:, index] - np.delete(means, index, axis=1).max(axis=1)

    return effect


def _falls_after(index: int) -> Effect:
    def effect(means: Array) -> Array:
        return -np.diff(means[:, index:], axis=1).max(axis=1)

    return effect


def _exponent(means: Array) -> Array:
    """Exponent between the two batches of the best warmups, by the parabola in log(warmup + 1)."""
    u = np.log(np.array(WARMUPS) + 1.0)
    design = np.stack([np.ones_like(u), u, u**2], axis=1)
    ends: list[Array] = []
    for part in (means[:, :4], means[:, 4:]):
        _, slope, bend = np.linalg.lstsq(design, part.T, rcond=None)[0]
        with np.errstate(all="ignore"):
            best = np.exp(-slope / (2 * bend)) - 1.0
            ends.append(np.where((bend < 0) & (best > 0), np.log(best), np.nan))
    return (ends[1] - ends[0]) / np.log(4.0)


def _below_reference(means: Array) -> Array:
    return 0.753 - means.max(axis=1)


_ARMS = [Point(30720, 5, "linear"), Point(30720, 5, "none")]

CLAIMS: Sequence[Claim] = (
    Claim(
        text="Accuracy falls as the batch grows (points lost per doubling)",
        where="figures 4, 5",
        points=[Point(b, 5, "linear") for b in BATCHES],
        effect=_falls_with_batch,
    ),
    Claim(
        text="Accuracy at 30,720 is lower than at 3,840",
        where="figures 4, 5",
        points=[Point(3840, 5, "linear"), Point(30720, 5, "linear")],
        effect=difference,
    ),
    Claim(
        text="At 7,680, training without warmup is worst",
        where="figure 6c",
        points=_warmups(7680),
        effect=_none_is_worst,
    ),
    Claim(
        text="At 30,720, training without warmup is worst",
        where="figure 7b",
        points=_warmups(30720),
        effect=_none_is_worst,
    ),
    Claim(
        text="At 7,680, 5 epochs of warmup are best",
        where="figure 6c",
        points=_warmups(7680),
        effect=_is_best(1),
    ),
    Claim(
        text="At 30,720, 10 epochs of warmup are best",
        where="figure 7b",
        points=_warmups(30720),
        effect=_is_best(2),
    ),
    Claim(
        text="At 7,680, accuracy falls with every warmup beyond 5 epochs",
        where="figure 6c",
        points=_warmups(7680),
        effect=_falls_after(1),
    ),
    Claim(
        text="At 30,720, accuracy falls with warmup beyond 10 epochs",
        where="figure 7b",
        points=_warmups(30720),
        effect=_falls_after(2),
    ),
    Claim(
        text="The best warmup grows with the batch, by less than the batch (exponent 0 to 1)",
        where="figures 6, 7",
        points=[*_warmups(7680), *_warmups(30720)],
        effect=_exponent,
        unit="exponent",
        upper=1.0,
        is_about_optimum=True,
    ),
    Claim(
        text="At 30,720, linear scaling and none reach the same accuracy",
        where="figure 8",
        points=_ARMS,
        effect=None,
        margin=MARGIN,
    ),
    Claim(
        text="At 30,720, linear scaling and none reach the same loss",
        where="figure 9",
        points=_ARMS,
        effect=None,
        unit="nats",
        measure="val_loss",
        margin=LOSS_MARGIN,
    ),
)

BELOW_REFERENCE = Claim(
    text="At 30,720, linear scaling and none stay below 75.3 %",
    where="figure 8",
    points=_ARMS,
    effect=_below_reference,
)
