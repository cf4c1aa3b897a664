"""Simulated studies that a question is asked about, seed after seed; nothing is trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.sequential.looks import Looks
from analysis.sequential.rule import Best, Bounds, Rule, take_looks
from analysis.stats.contrasts import Contrasts

#: Noise of arms over seeds, shape (arms, seeds), of standard deviation 1 where spreads are equal.
NOISES: dict[str, Callable] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "skewed": lambda rng, shape: 1 - rng.exponential(1, shape),
    "spreads 1 to 4": lambda rng, shape: rng.standard_normal(shape) * _spreads(shape, 0.5, 2),
    "skewed, spreads 1 to 2": lambda rng, shape: (
        (1 - rng.exponential(1, shape)) * _spreads(shape, 0.7, 1.4)
    ),
    "shared by a seed": lambda rng, shape: (
        0.5 * rng.standard_normal(shape) + np.sqrt(0.75) * rng.standard_normal((1, shape[1]))
    ),
    "of 360 images": lambda rng, shape: (
        np.round(360 * (0.97 + 0.004 * rng.standard_normal(shape))) / 360 / 0.004
    ),
}


def _spreads(shape, least, most):
    return np.linspace(least, most, shape[0])[:, None]


@dataclass(frozen=True)
class Kind:
    """A question, what is true of its arms, and which answers are wrong then."""

    truth: Sequence[float]
    rule: Callable[[Looks], Rule]
    is_wrong: Callable[[Rule], bool]
    is_right: Callable[[Rule], bool] = lambda rule: False


def best_of(*truth: float) -> Kind:
    """Which arm is best; where several are, to call one of them the best is wrong."""
    best = [arm for arm, value in enumerate(truth) if value == max(truth)]
    only = best[0] if len(best) == 1 else None
    return Kind(
        truth,
        lambda looks: Best(len(truth), looks),
        lambda rule: rule.best is not None and rule.best != only,
        lambda rule: rule.best is not None and rule.best == only,
    )


def no_worse(*truth: float, margin: float) -> Kind:
    """Whether each other arm is at most a margin below the first; at the margin any is wrong."""
    pairs = [(arm, 0) for arm in range(1, len(truth))]
    contrasts = Contrasts.pairs(*pairs, num_arms=len(truth), lower=-margin)
    is_so = [value - truth[0] > -margin if value - truth[0] != -margin else None for value in truth]

    def answers(rule):
        return [(a, so) for a, so in zip(rule.answers, is_so[1:], strict=True) if a is not None]

    return Kind(
        truth,
        lambda looks: Bounds(contrasts, looks, is_each=True),
        lambda rule: any(answer != so for answer, so in answers(rule)),
        lambda rule: rule.is_answered and all(answer == so for answer, so in answers(rule)),
    )


def alike(*truth: float, margin: float) -> Kind:
    """Whether two arms differ by less than a margin; at the margin any answer is wrong."""
    contrasts = Contrasts.pairs((0, 1), lower=-margin, upper=margin)
    apart = abs(truth[0] - truth[1])
    is_so = None if apart == margin else apart < margin
    return Kind(
        truth,
        lambda looks: Bounds(contrasts, looks),
        lambda rule: rule.answer is not None and rule.answer != is_so,
        lambda rule: rule.answer is not None and rule.answer == is_so,
    )


@dataclass(frozen=True)
class Shares:
    """Of studies: wrong answers, right answers, and runs a study."""

    wrong: float
    right: float
    runs: float


def asked(
    kind: Kind, noise: str, looks: Looks, studies: int, *, give_up: float = 0.05, seed: int = 0
) -> Shares:
    """Ask a question in each of many studies."""
    rng, truth = np.random.default_rng(seed), np.array(kind.truth)[:, None]
    found = []
    for _ in range(studies):
        values = truth + NOISES[noise](rng, (len(truth), looks.at[-1]))
        rule = kind.rule(looks)
        course = take_looks(rule, values, give_up)
        found.append((kind.is_wrong(rule), kind.is_right(rule), course.used.sum()))
    return Shares(*np.mean(found, axis=0))
