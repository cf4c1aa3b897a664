"""A question asked again after each seed, until it is answered or cannot be answered any more.

Each seed is a block: a contrast is computed within each seed, so the effect that a seed has on all
arms cancels, and unequal variances of the arms do no harm. A diverged run is the worst of its seed.
"""

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from analysis.sequential.looks import Interval, Looks
from analysis.stats.replicates import Array

Flags = NDArray[np.bool_]


@dataclass(slots=True)
class NoWorse:
    """Whether each of the other arms is at most a margin below a reference.

    Each has an answer of its own; with k - 1 others, its interval is at ``1 / (k - 1)`` of the
    level.
    """

    num_arms: int
    looks: Looks
    margin: float
    reference: int = 0
    #: By arm: whether it is; None while that is open.
    answers: dict[int, bool | None] = field(init=False)
    #: By arm: by how much it is better than the reference.
    intervals: dict[int, Interval] = field(default_factory=dict[int, Interval])
    lost: Flags = field(init=False)

    def __post_init__(self) -> None:
        """Start without any answer."""
        self.answers = {arm: None for arm in range(self.num_arms) if arm != self.reference}
        self.lost = np.zeros(self.num_arms, dtype=bool)

    @property
    def _level(self) -> float:
        return self.looks.level / len(self.answers)

    @property
    def is_answered(self) -> bool:
        """Whether every arm has an answer."""
        return None not in self.answers.values()

    @property
    def open_arms(self) -> Flags:
        """Arms for which more seeds would be informative."""
        left = np.array([self.answers.get(arm, True) is None for arm in range(self.num_arms)])
        left[self.reference] = left.any()
        return left

    def update(self, values: Array) -> None:
        """Look at values of the first seeds, shape (arms, seeds); infinite for diverged runs."""
        self.lost |= np.isinf(values).any(axis=1)
        for arm, known in self.answers.items():
            if known is not None:
                continue
            with np.errstate(invalid="ignore"):  # both may have diverged
                ahead = values[arm] - values[self.reference]
            found = Interval.from_seeds(ahead, self.looks, self._level)
            self.intervals[arm] = found
            if found.low > -self.margin:
                self.answers[arm] = True
            elif found.high < -self.margin:
                self.answers[arm] = False

    def chance(self, last: int) -> float:
        """The chance of an answer to the likeliest of those that are open."""
        width = self.looks.half_width(last, self._level)
        return max(
            found.chance_between(-self.margin, np.inf, last, width)
            + found.chance_between(-np.inf, -self.margin, last, width)
            for arm, found in self.intervals.items()
            if self.answers[arm] is None
        )


@dataclass(slots=True)
class Best:
    """Which arm is best, or at most a margin below the best.

    An arm is out as soon as another is above it, and is the answer as soon as no arm that is left
    can be more than the margin above it. The best arm is compared with k - 1 others, each at
    ``1 / (k - 1)`` of the level. It is wrongly put out with a chance of at most half the level, as
    that takes a single side. While it is in, no arm more than the margin below it can be the
    answer. Of equal arms, any may be called the best with twice that chance.
    """

    num_arms: int
    looks: Looks
    margin: float = 0.0
    in_it: Flags = field(init=False)
    lost: Flags = field(init=False)
    pairs: dict[tuple[int, int], Interval] = field(default_factory=dict)
    best: int | None = None

    def __post_init__(self) -> None:
        """Start with all arms in."""
        self.in_it = np.ones(self.num_arms, dtype=bool)
        self.lost = np.zeros(self.num_arms, dtype=bool)

    @property
    def _level(self) -> float:
        return self.looks.level / (self.num_arms - 1)

    @property
    def open_arms(self) -> Flags:
        """Arms that may be the best."""
        left = self.in_it.copy()  # `update` takes arms out of it
        return left if self.best is None and left.sum() > 1 else np.zeros_like(left)

    @property
    def is_answered(self) -> bool:
        """Whether an arm is the answer."""
        return self.best is not None

    def update(self, values: Array) -> None:
        """Take out arms that others are above, and see whether any is the answer."""
        self.lost |= np.isinf(values).any(axis=1)
        left = [int(arm) for arm in np.flatnonzero(self.open_arms)]
        for i, j in combinations(left, 2):
            with np.errstate(invalid="ignore"):  # both may have diverged
                apart = Interval.from_seeds(values[i] - values[j], self.looks, self._level)
            self.pairs[i, j], self.pairs[j, i] = apart, apart.negate()
        answers = [
            i for i in left if all(self.pairs[i, j].low > -self.margin for j in left if j != i)
        ]
        for j in left:
            self.in_it[j] = all(self.pairs[i, j].low <= 0 for i in left if i != j)
        if answers and len(left) > 1:
            self.best = max(answers, key=lambda arm: float(values[arm].mean()))
        elif len(left) > 1 and sum(self.in_it[left]) == 1:  # each of the others is below some other
            self.best = next(arm for arm in left if self.in_it[arm])

    def chance(self, last: int) -> float:
        """The chance of an arm being the answer, summed over the arms."""
        width = self.looks.half_width(last, self._level)
        left = [int(arm) for arm in np.flatnonzero(self.open_arms)]
        chances = {
            (i, j): self.pairs[i, j].chance_between(-self.margin, np.inf, last, width)
            for i in left
            for j in left
            if i != j
        }
        return sum(min(chances[i, j] for j in left if j != i) for i in left)


#: How intervals answer a question.
Rule = Best | NoWorse


@dataclass(frozen=True, slots=True)
class Course:
    """How far a question has come.

    Attributes:
        looks: number of looks taken.
        seeds: at the latest look, 0 before the first.
        needs: arms that the next look needs, none if there is none.
        used: seeds of each arm that the looks so far used.
        upto: seeds that the next look needs of them.
        is_hopeless: whether it ended because the remaining seeds would hardly answer it.
    """

    looks: int
    seeds: int
    needs: Flags
    used: NDArray[np.int64]
    upto: int = 0
    is_hopeless: bool = False


def take_looks(rule: Rule, values: Array, give_up: float) -> Course:
    """Look at the values as if they came seed after seed, as far as they exist.

    The same values give the same looks and answers, however often and in how many parts this is
    done.

    Values are nan for a run without a result yet, infinite, as the worst, for a run that diverged;
    `give_up` is the chance of an answer below which the remaining seeds are not run.
    """
    last, seen, used = rule.looks.at[-1], 0, np.zeros(len(values), dtype=np.int64)
    for number, n in enumerate(rule.looks.at):
        needs = rule.open_arms
        if not needs.any():
            return Course(number, seen, needs, used)
        if np.isnan(values[needs, :n]).any():
            return Course(number, seen, needs, used, upto=n)
        rule.update(values[:, :n])
        seen, used[needs] = n, n
        if rule.open_arms.any() and n < last and rule.chance(last) < give_up:
            return Course(number + 1, n, np.zeros_like(needs), used, is_hopeless=True)
    return Course(len(rule.looks.at), seen, np.zeros_like(rule.open_arms), used)
