"""Goyal et al. 2017, Accurate, large minibatch SGD (arXiv:1706.02677): its figures and tables.

As there, an accuracy is the median over the last five epochs.
"""

from functools import partial

from analysis.papers.design import Paper, PaperFigure, Point, Published

PUBLISHED_BY = "Goyal et al. 2017"

BATCHES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

#: Top-1 error of ResNet-50 after 90 epochs, mean and standard deviation over 5 runs [%]: linear
#: scaling with 5 epochs of gradual warmup, from 256 on.
_ERRORS = (
    (23.60, 0.12),
    (23.48, 0.09),
    (23.53, 0.08),
    (23.49, 0.11),
    (23.56, 0.12),
    (23.74, 0.09),
    (24.79, 0.27),
    (27.55, 0.28),
    (33.96, 0.80),
)


def _published(
    batch: int, error: float, spread: float, warmup: int = 5, rule: str = "linear"
) -> Published:
    return Published(Point(batch, warmup, rule), 1 - error / 100, spread / 100)


PUBLISHED = (
    *(_published(b, error, spread) for b, (error, spread) in zip(BATCHES, _ERRORS, strict=True)),
    _published(8192, 24.84, 0.37, warmup=0),
    _published(8192, 26.22, 0.03, rule="sqrt"),
    _published(8192, 41.67, 0.10, rule="none"),
)

_batches = partial(PaperFigure, batches=BATCHES, warmups=(5,), along="batch")
_warmups = partial(PaperFigure, batches=(8192,), warmups=(0, 5), along="warmup")
_rules = partial(
    PaperFigure, batches=(8192,), warmups=(5,), rules=("linear", "sqrt", "none"), along="rule"
)
_batches_final = partial(_batches, is_final=True, last_epochs=5)
_warmups_final = partial(_warmups, is_final=True, last_epochs=5)
_rules_final = partial(_rules, is_final=True, last_epochs=5)

PAPER = Paper(
    name="goyal2017",
    citation=PUBLISHED_BY,
    experiment="goyal2017",
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
)
