"""A question asked again after each seed, until it is answered or cannot be answered any more.

Each seed is a block: a contrast is computed within each seed, so the effect that a seed has on all
arms cancels, and unequal variances of the arms do no harm.
"""

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from analysis.sequential.looks import Interval, Looks
from analysis.stats.contrasts import Contrasts
from analysis.stats.replicates import Array

Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Bounds:
    """Whether contrasts lie between their bounds: all of them, any, or each for itself.

    All of k do if each interval, at the full level, lies inside; not all do if any interval, at
    ``1 / k`` of the level, lies outside (intersection-union, and Bonferroni). Where any is enough
    it is the other way round; where each counts for itself both are at ``1 / k`` of the level.
    """

    contrasts: Contrasts
    looks: Looks
    is_each: bool = False
    answers: list[bool | None] = field(init=False)
    intervals: list[Interval | None] = field(init=False)
    lost: Flags = field(init=False)

    def __post_init__(self) -> None:
        """Start without any answer."""
        count, arms = self.contrasts.weights.shape
        self.answers, self.intervals = [None] * count, [None] * count
        self.lost = np.zeros(arms, dtype=bool)

    @property
    def _levels(self) -> tuple[float, float]:
        """Levels of the intervals that decide for inside, and for outside."""
        alone, among = self.looks.level, self.looks.level / len(self.answers)
        if self.is_each:
            return among, among
        return (among, alone) if self.contrasts.is_any else (alone, among)

    @property
    def answer(self) -> bool | None:
        """Whether all do, or any does; None while that is open, and where each counts."""
        decisive = self.contrasts.is_any  # a single such contrast is enough
        if self.is_each or (None in self.answers and decisive not in self.answers):
            return None
        return decisive if decisive in self.answers else not decisive

    @property
    def is_answered(self) -> bool:
        """Whether the whole has an answer, or each contrast where each counts."""
        return None not in self.answers if self.is_each else self.answer is not None

    @property
    def _open(self) -> list[int]:
        """Places of the contrasts that more seeds may answer; none once the whole is answered."""
        lost = self.contrasts.uses_any(self.lost)
        places = [k for k, known in enumerate(self.answers) if known is None and not lost[k]]
        return places if self.answer is None else []

    @property
    def open_arms(self) -> Flags:
        """Arms of the contrasts for which more seeds would be informative."""
        return np.asarray(self.contrasts.uses[self._open].any(axis=0))

    def update(self, values: Array) -> None:
        """Look at values of the first seeds, shape (arms, seeds); infinite for diverged runs."""
        self.lost |= np.isinf(values).any(axis=1)
        inside, outside = self._levels
        for k in self._open:
            arms = self.contrasts.uses[k]
            of_seeds = self.contrasts.weights[k, arms] @ values[arms] + self.contrasts.constant
            near = Interval.from_seeds(of_seeds, self.looks, inside)
            far = Interval.from_seeds(of_seeds, self.looks, outside)
            self.intervals[k] = far if self.contrasts.is_any else near
            if self.contrasts.lower < near.low and near.high < self.contrasts.upper:
                self.answers[k] = True
            elif far.high < self.contrasts.lower or far.low > self.contrasts.upper:
                self.answers[k] = False

    def chance(self, last: int) -> float:
        """The chance of an answer to the whole, or, where each counts, to the likeliest."""
        inside, outside = (self.looks.half_width(last, level) for level in self._levels)
        lower, upper = self.contrasts.lower, self.contrasts.upper
        found = [interval for k in self._open if (interval := self.intervals[k])]
        ins = [i.chance_between(lower, upper, last, inside) for i in found]
        outs = [
            i.chance_between(-np.inf, lower, last, outside)
            + i.chance_between(upper, np.inf, last, outside)
            for i in found
        ]
        if self.is_each:
            return max(a + b for a, b in zip(ins, outs, strict=True))
        is_whole = len(found) == sum(known is None for known in self.answers)
        together, either = (outs, ins) if self.contrasts.is_any else (ins, outs)
        return min(together) * is_whole + sum(either)


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
        left = self.in_it & ~self.lost
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
            apart = Interval.from_seeds(values[i] - values[j], self.looks, self._level)
            self.pairs[i, j], self.pairs[j, i] = apart, replace(apart, mean=-apart.mean)
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
Rule = Best | Bounds


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

    Values are nan for a run without a result yet, infinite for a run that diverged; `give_up` is
    the chance of an answer below which the remaining seeds are not run.
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
