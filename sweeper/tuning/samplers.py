"""Samplers whose n-th trial is fixed from the start: quasi-random points, and a grid.

Optuna's own QMCSampler and GridSampler keep a counter in the storage, so a trial that is killed
after the counter but before its parameters are stored loses its point. These samplers depend only
on the trial's number.
"""

import itertools
from abc import abstractmethod
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.stats import qmc

from sweeper.tuning.space import Space


class FixedSampler(RandomSampler):
    """A fixed list of points."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(seed)
        self._space, self._seed = space, seed

    @abstractmethod
    def point(self, number: int) -> dict[str, Any]:
        """The parameters of a trial."""

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The value at the point of this trial's number."""
        del study, param_distribution
        return self.point(trial.number)[param_name]


class QuasiRandomSampler(FixedSampler):
    """Halton points with scrambled digits, Owen 2017, arXiv:1706.02808, by SciPy."""

    def point(self, number: int) -> dict[str, Any]:
        """The parameters of a trial."""
        points = qmc.Halton(len(self._space), scramble=True, rng=self._seed)
        points.fast_forward(number)
        fractions = points.random(1)[0]
        return {
            key: value_at(distribution, float(fraction))
            for (key, distribution), fraction in zip(self._space.items(), fractions, strict=True)
        }


class GridSampler(FixedSampler):
    """Every combination of the values, whatever the seed; ranges are divided into levels."""

    def __init__(self, space: Space, seed: int, levels: int) -> None:
        super().__init__(space, seed)
        self._levels = levels

    def point(self, number: int) -> dict[str, Any]:
        """The parameters of a trial."""
        points = self.points()
        return points[number % len(points)]

    def points(self) -> list[dict[str, Any]]:
        """Every combination."""
        values = [_levels(distribution, self._levels) for distribution in self._space.values()]
        return [dict(zip(self._space, point, strict=True)) for point in itertools.product(*values)]


def value_at(distribution: BaseDistribution, fraction: float) -> Any:
    """The value at a fraction, from 0 to below 1, of a distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(fraction * len(distribution.choices))]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if isinstance(distribution, IntDistribution) and distribution.log:
        # Each whole number gets the half unit on either side of it.
        value = round(_between(low - 0.5, high + 0.5, fraction, log=True))
        return min(max(value, distribution.low), distribution.high)
    if distribution.step is not None:
        count = round((high - low) / distribution.step) + 1
        return distribution.low + int(fraction * count) * distribution.step
    return _between(low, high, fraction, log=distribution.log)


def _levels(distribution: BaseDistribution, levels: int) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.step is not None and not distribution.log:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        return [distribution.low + i * distribution.step for i in range(count)]
    spaced = np.geomspace if distribution.log else np.linspace
    values = spaced(distribution.low, distribution.high, levels).tolist()
    is_whole = isinstance(distribution, IntDistribution)
    return sorted({round(value) for value in values}) if is_whole else values


def _between(low: float, high: float, fraction: float, *, log: bool) -> float:
    """The value at a fraction from 0 to 1 of a range, clamped because rounding could leave it."""
    value = low * (high / low) ** fraction if log else low + fraction * (high - low)
    return min(max(value, low), high)
