"""Simulated studies that a question is asked about, seed after seed; nothing is trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.sequential.looks import Looks
from analysis.sequential.rule import Best, NoWorse, Rule, take_looks

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
    is_so = [value - truth[0] > -margin if value - truth[0] != -margin else None for value in truth]

    def answers(rule):
        return [(a, is_so[arm]) for arm, a in rule.answers.items() if a is not None]

    return Kind(
        truth,
        lambda looks: NoWorse(len(truth), looks, margin),
        lambda rule: any(answer != so for answer, so in answers(rule)),
        lambda rule: rule.is_answered and all(answer == so for answer, so in answers(rule)),
    )


@dataclass(frozen=True)
class Shares:
    """Of studies: wrong answers, right answers, and runs a study."""

    wrong: float
    right: float
    runs: float


def asked(
    kind: Kind, noise: str, looks: Looks, studies: int, *, give_up: float = 0.05, seed: int = 0,
    diverged: Sequence[float] = (),
) -> Shares:  # fmt: skip
    """Ask a question in each of many studies; `diverged` is the share that does, of each arm."""
    rng, truth = np.random.default_rng(seed), np.array(kind.truth)[:, None]
    found = []
    for _ in range(studies):
        values = truth + NOISES[noise](rng, (len(truth), looks.at[-1]))
        values = with_diverged(values, diverged, rng) if diverged else values
        rule = kind.rule(looks)
        course = take_looks(rule, values, give_up)
        found.append((kind.is_wrong(rule), kind.is_right(rule), course.used.sum()))
    return Shares(*np.mean(found, axis=0))


def with_diverged(values, shares, rng):
    """Values of arms with a share of the runs of each diverged, which is the worst."""
    return np.where(rng.random(values.shape) < np.array(shares)[:, None], -np.inf, values)
