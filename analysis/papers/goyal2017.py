"""Goyal et al. 2017, Accurate, large minibatch SGD (arXiv:1706.02677): figures, tables, claims.

As in the paper, an accuracy in its figures is the median over the last five epochs.
"""

from functools import partial

from analysis.papers.claim import MARGIN, Claim, Point
from analysis.papers.paper import Paper, PaperFigure, Published
from analysis.stats.contrasts import Contrasts

CITATION = "Goyal et al. 2017"

BATCHES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

#: Top-1 error of ResNet-50 after 90 epochs, mean and standard deviation over 5 runs [%]: linear
#: scaling with 5 epochs of gradual warmup, from 256 on.
_ERRORS = (
    (23.60, 0.12), (23.48, 0.09), (23.53, 0.08), (23.49, 0.11), (23.56, 0.12), (23.74, 0.09),
    (24.79, 0.27), (27.55, 0.28), (33.96, 0.80),
)  # fmt: skip


def _point(batch: int, warmup: float = 5, rule: str = "linear") -> Point:
    return Point(batch, warmup, rule)


def _published(point: Point, error: float, spread: float) -> Published:
    return Published(point, 1 - error / 100, spread / 100)


PUBLISHED = (
    *(_published(_point(b), *error) for b, error in zip(BATCHES, _ERRORS, strict=True)),
    _published(_point(8192, warmup=0), 24.84, 0.37),
    _published(_point(8192, rule="sqrt"), 26.22, 0.03),
    _published(_point(8192, rule="none"), 41.67, 0.10),
)

_batches = partial(PaperFigure, batches=BATCHES, warmups=(5,), along="batch")
_warmups = partial(PaperFigure, batches=(8192,), warmups=(0, 5), along="warmup")
_rules = partial(
    PaperFigure, batches=(8192,), warmups=(5,), rules=("linear", "sqrt", "none"), along="rule"
)
_batches_final = partial(_batches, is_final=True, last_epochs=5)
_warmups_final = partial(_warmups, is_final=True, last_epochs=5)
_rules_final = partial(_rules, is_final=True, last_epochs=5)


def _claim_higher(text: str, where: str, better: Point, worse: Point) -> Claim:
    return Claim(text, where, [better, worse], Contrasts.pairs((0, 1)))


_CLAIMS = (
    Claim(
        "Linear scaling with gradual warmup keeps the accuracy of 256 up to 8,192", "figure 1",
        [_point(8192), _point(256)], Contrasts.pairs((0, 1), lower=-MARGIN),
    ),
    _claim_higher(
        "Beyond 8,192 accuracy falls: 16,384 is below 256", "figure 1", _point(256), _point(16384)
    ),
    _claim_higher(
        "It keeps falling: 65,536 is below 16,384", "figure 1", _point(16384), _point(65536)
    ),
    _claim_higher(
        "At 8,192, gradual warmup is better than none", "warmup table",
        _point(8192), _point(8192, warmup=0),
    ),
    _claim_higher(
        "At 8,192, linear scaling is better than the square root", "learning-rate table",
        _point(8192), _point(8192, rule="sqrt"),
    ),
    _claim_higher(
        "At 8,192, linear scaling is better than none", "learning-rate table",
        _point(8192), _point(8192, rule="none"),
    ),
)  # fmt: skip

PAPER = Paper(
    name="goyal2017",
    citation=CITATION,
    lines=((0.7640, "76.40 %, batch 256 there"),),
    published=PUBLISHED,
    protocol={"rate_per_example": 0.1 / 256, "bn_span": 32},
    figures=(
        _batches_final(name="figure_1", title="Final accuracy against batch"),
        _batches(name="figure_1_curves", title="Accuracy per epoch at each batch"),
        _warmups(name="figure_3", title="No warmup or gradual warmup at batch 8,192"),
        _warmups_final(name="warmup_final", title="Final accuracy by warmup at batch 8,192"),
        _rules(name="rules", title="Linear scaling, square root or none at batch 8,192"),
        _rules_final(name="rules_final", title="Final accuracy by lr rule at batch 8,192"),
    ),
    claims=_CLAIMS,
)
