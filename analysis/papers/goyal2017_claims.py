"""The statements of Goyal et al. 2017 (arXiv:1706.02677) as predicates on the table."""

from collections.abc import Sequence

from analysis.papers.design import Point
from analysis.papers.verdict import Claim, difference

#: Differences of accuracy smaller than this do not matter [accuracy, 0 to 1].
MARGIN = 0.003


def _at(batch: int, warmup: float = 5, rule: str = "linear") -> Point:
    return Point(batch, warmup, rule)


CLAIMS: Sequence[Claim] = (
    Claim(
        text="Linear scaling with gradual warmup keeps the accuracy of 256 up to 8,192",
        where="figure 1",
        points=[_at(256), _at(8192)],
        effect=None,
        margin=MARGIN,
    ),
    Claim(
        text="Beyond 8,192 accuracy falls: 16,384 is below 256",
        where="figure 1",
        points=[_at(256), _at(16384)],
        effect=difference,
    ),
    Claim(
        text="It goes on falling: 65,536 is below 16,384",
        where="figure 1",
        points=[_at(16384), _at(65536)],
        effect=difference,
    ),
    Claim(
        text="At 8,192, gradual warmup is better than none",
        where="warmup table",
        points=[_at(8192), _at(8192, warmup=0)],
        effect=difference,
    ),
    Claim(
        text="At 8,192, linear scaling is better than the square root",
        where="learning-rate table",
        points=[_at(8192), _at(8192, rule="sqrt")],
        effect=difference,
    ),
    Claim(
        text="At 8,192, linear scaling is better than none",
        where="learning-rate table",
        points=[_at(8192), _at(8192, rule="none")],
        effect=difference,
    ),
)
