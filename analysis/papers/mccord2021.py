"""McCord & Dash 2021, Increasing mini-batch size while preserving accuracy: figures and claims."""

from functools import partial

import numpy as np

from analysis.papers.claim import LOSS_MARGIN, MARGIN, Claim, Point
from analysis.papers.goyal2017 import PUBLISHED
from analysis.papers.paper import Paper, PaperFigure
from analysis.stats.contrasts import Contrasts
from analysis.tables.metric import LOSS

BATCHES = (3840, 7680, 15360, 23040, 30720)
WARMUPS = (0, 5, 10, 20)

#: Accuracy that the runs at 30,720 stay below (0 to 1).
REFERENCE = 0.753


def _falls_with_batch() -> Contrasts:
    """Minus the slope of the five means over log2 of the batch."""
    x = np.log2(np.array(BATCHES, dtype=float))
    x -= x.mean()
    return Contrasts(weights=-x[None, :] / (x @ x))


#: Contrasts of the four warmups: a warmup above each of the others, or each above the next.
_none_is_worst = Contrasts.pairs((1, 0), (2, 0), (3, 0), num_arms=4)
_5_is_best = Contrasts.pairs((1, 0), (1, 2), (1, 3), num_arms=4)
_10_is_best = Contrasts.pairs((2, 0), (2, 1), (2, 3), num_arms=4)
_falls_after_5 = Contrasts.pairs((1, 2), (2, 3), num_arms=4)
_falls_after_10 = Contrasts.pairs((2, 3), num_arms=4)

_batches = partial(PaperFigure, batches=BATCHES, warmups=(5,), along="batch")
_at_7680 = partial(PaperFigure, batches=(7680,), warmups=WARMUPS, along="warmup")
_at_30720 = partial(PaperFigure, batches=(30720,), warmups=WARMUPS, along="warmup")
_rules = partial(
    PaperFigure, batches=(30720,), warmups=(5,), rules=("linear", "none"), along="rule"
)

_AT_7680 = [Point(7680, warmup) for warmup in WARMUPS]
_AT_30720 = [Point(30720, warmup) for warmup in WARMUPS]
_RULES = [Point(30720, 5), Point(30720, 5, "none")]

_CLAIMS = (
    Claim(
        "Accuracy falls as the batch grows (points lost per doubling)", "figures 4, 5",
        [Point(batch, 5) for batch in BATCHES], _falls_with_batch(),
    ),
    Claim(
        "Accuracy at 30,720 is lower than at 3,840", "figures 4, 5",
        [Point(3840, 5), Point(30720, 5)], Contrasts.pairs((0, 1)),
    ),
    Claim(
        "At 7,680, training without warmup is worst", "figure 6c", _AT_7680, _none_is_worst
    ),
    Claim(
        "At 30,720, training without warmup is worst", "figure 7b", _AT_30720, _none_is_worst
    ),
    Claim("At 7,680, 5 epochs of warmup are best", "figure 6c", _AT_7680, _5_is_best),
    Claim("At 30,720, 10 epochs of warmup are best", "figure 7b", _AT_30720, _10_is_best),
    Claim(
        "At 7,680, accuracy falls with every warmup beyond 5 epochs", "figure 6c",
        _AT_7680, _falls_after_5,
    ),
    Claim(
        "At 30,720, accuracy falls with warmup beyond 10 epochs", "figure 7b",
        _AT_30720, _falls_after_10,
    ),
    Claim(
        "The best warmup grows with the batch, by less than the batch (exponent 0 to 1)",
        "figures 6, 7", [*_AT_7680, *_AT_30720], contrasts=None, unit="exponent",
    ),
    Claim(
        "At 30,720, linear scaling and none reach the same accuracy", "figure 8", _RULES,
        Contrasts.pairs((0, 1), lower=-MARGIN, upper=MARGIN),
    ),
    Claim(
        "At 30,720, linear scaling and none reach the same loss", "figure 9", _RULES,
        Contrasts.pairs((0, 1), lower=-LOSS_MARGIN, upper=LOSS_MARGIN),
        unit="nats", metric=LOSS,
    ),
    Claim(
        "At 30,720, linear scaling and none stay below 75.3 %", "figure 8", _RULES,
        Contrasts(weights=-np.eye(2), constant=REFERENCE),
        only_there="75.3 % is for ResNet-50 on ImageNet, 90 epochs; these runs differ",
    ),
)  # fmt: skip

PAPER = Paper(
    name="mccord2021",
    citation="McCord & Dash 2021",
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
        _rules(name="figure_9", title="Linear scaling or none at batch 30,720: loss", metric=LOSS),
    ),
    claims=_CLAIMS,
)
