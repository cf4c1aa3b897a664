"""McCord & Dash 2021, Increasing mini-batch size while preserving accuracy: figures and claims."""

from functools import partial

import numpy as np

from analysis.papers.claim import Claim, Effect, difference
from analysis.papers.goyal2017 import PUBLISHED
from analysis.papers.grid import PaperFigure, Point
from analysis.papers.paper import Paper
from analysis.stats.replicates import Array
from analysis.tables.metric import LOSS

BATCHES = (3840, 7680, 15360, 23040, 30720)
WARMUPS = (0, 5, 10, 20)

#: Differences smaller than these do not matter [accuracy, 0 to 1; nats].
MARGIN, LOSS_MARGIN = 0.003, 0.02

#: Accuracy that the runs at 30,720 stay below (0 to 1).
REFERENCE = 0.753


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
    return REFERENCE - means.max(axis=1)


_batches = partial(PaperFigure, batches=BATCHES, warmups=(5,), along="batch")
_at_7680 = partial(PaperFigure, batches=(7680,), warmups=WARMUPS, along="warmup")
_at_30720 = partial(PaperFigure, batches=(30720,), warmups=WARMUPS, along="warmup")
_rules = partial(
    PaperFigure, batches=(30720,), warmups=(5,), rules=("linear", "none"), along="rule"
)

_WARMUPS_AT = {b: [Point(b, w) for w in WARMUPS] for b in (7680, 30720)}
_claim_at_7680 = partial(Claim, where="figure 6c", points=_WARMUPS_AT[7680])
_claim_at_30720 = partial(Claim, where="figure 7b", points=_WARMUPS_AT[30720])
_claim_of_rules = partial(Claim, points=[Point(30720, 5), Point(30720, 5, "none")])

PAPER = Paper(
    name="mccord2021",
    citation="McCord & Dash 2021",
    experiment="mccord2021_warmup",
    lines=((REFERENCE, "75.3 %, He et al. 2015"), (0.7626, "76.26 %, Goyal et al. 2017 at 8,192")),
    published=PUBLISHED,
    published_remark=", with Nesterov's momentum, weight decay 1e-4 and BatchNorm over 32.",
    protocol={"rate_per_example": 0.1 / 256},
    figures=(
        _batches(name="figure_4", title="Accuracy per epoch at each batch"),
        _batches(name="figure_5", title="Final accuracy against batch", is_final=True),
        _at_7680(name="figure_6a", title="Warmups at batch 7,680"),
        _at_7680(name="figure_6b", title="Warmups at batch 7,680, the last third", zoom_from=2 / 3),
        _at_7680(
            name="figure_6c", title="Final accuracy against warmup at batch 7,680", is_final=True
        ),
        _at_30720(name="figure_7a", title="Warmups at batch 30,720"),
        _at_30720(
            name="figure_7b", title="Final accuracy against warmup at batch 30,720", is_final=True
        ),
        _rules(name="figure_8", title="Linear scaling or none at batch 30,720"),
        _rules(
            name="figure_9",
            title="Linear scaling or none at batch 30,720: loss",
            metric=LOSS,
        ),
    ),
    claims=(
        Claim(
            text="Accuracy falls as the batch grows (points lost per doubling)",
            where="figures 4, 5",
            points=[Point(b, 5) for b in BATCHES],
            effect=_falls_with_batch,
        ),
        Claim(
            text="Accuracy at 30,720 is lower than at 3,840",
            where="figures 4, 5",
            points=[Point(3840, 5), Point(30720, 5)],
            effect=difference,
        ),
        _claim_at_7680(text="At 7,680, training without warmup is worst", effect=_none_is_worst),
        _claim_at_30720(text="At 30,720, training without warmup is worst", effect=_none_is_worst),
        _claim_at_7680(text="At 7,680, 5 epochs of warmup are best", effect=_is_best(1)),
        _claim_at_30720(text="At 30,720, 10 epochs of warmup are best", effect=_is_best(2)),
        _claim_at_7680(
            text="At 7,680, accuracy falls with every warmup beyond 5 epochs",
            effect=_falls_after(1),
        ),
        _claim_at_30720(
            text="At 30,720, accuracy falls with warmup beyond 10 epochs", effect=_falls_after(2)
        ),
        Claim(
            text="The best warmup grows with the batch, by less than the batch (exponent 0 to 1)",
            where="figures 6, 7",
            points=[*_WARMUPS_AT[7680], *_WARMUPS_AT[30720]],
            effect=_exponent,
            unit="exponent",
            upper=1.0,
            is_about_optimum=True,
        ),
        _claim_of_rules(
            text="At 30,720, linear scaling and none reach the same accuracy",
            where="figure 8",
            effect=None,
            margin=MARGIN,
        ),
        _claim_of_rules(
            text="At 30,720, linear scaling and none reach the same loss",
            where="figure 9",
            effect=None,
            unit="nats",
            metric=LOSS,
            margin=LOSS_MARGIN,
        ),
        _claim_of_rules(
            text="At 30,720, linear scaling and none stay below 75.3 %",
            where="figure 8",
            effect=_below_reference,
            only_there=("75.3 % is of ImageNet, ResNet-50 and 90 epochs; these runs differ"),
        ),
    ),
)
