"""Samplers whose n-th trial is known beforehand: quasi-random points, and a grid."""

import itertools
import math
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.stats import qmc

from sweeper.tuning.space import Space


class FixedDesign(BaseSampler):
    """A fixed list of trials, so that a study cut short goes on where it stopped.

    Args:
        space: what is tuned.
    """

    def __init__(self, space: Space) -> None:
        self._space = space

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The whole space."""
        del study, trial
        return self._space

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Called by Optuna for parameters that were not drawn together, which none is."""
        space = self.infer_relative_search_space(study, trial)
        assert space[param_name] == param_distribution
        return self.sample_relative(study, trial, space)[param_name]


class QuasiRandom(FixedDesign):
    """Scrambled Halton points.

    Args:
        space: what is tuned.
        seed: of the scrambling.

    Source:
        Halton points with scrambled digits, Owen 2017, arXiv:1706.02808, by SciPy.
    """

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space)
        self._seed = seed

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point of this trial's number."""
        del study
        points = qmc.Halton(len(search_space), scramble=True, rng=self._seed)
        points.fast_forward(trial.number)
        place = points.random(1)[0]
        return {
            key: value_at(search_space[key], float(place[i])) for i, key in enumerate(search_space)
        }


class Grid(FixedDesign):
    """Every combination of the values, in order; intervals are cut into levels.

    Args:
        space: what is tuned.
        levels: of an interval [count].
        seed: does not matter here.
    """

    def __init__(self, space: Space, levels: int, seed: int) -> None:
        super().__init__(space)
        del seed
        self._levels = levels

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point of this trial's number."""
        del study, search_space
        points = self.points()
        return points[trial.number % len(points)]

    def points(self) -> list[dict[str, Any]]:
        """Every combination."""
        values = [_levels(distribution, self._levels) for distribution in self._space.values()]
        return [dict(zip(self._space, point, strict=True)) for point in itertools.product(*values)]


def value_at(distribution: BaseDistribution, place: float) -> Any:
    """The value at a place from 0 to below 1 along a distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(place * len(distribution.choices))]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if isinstance(distribution, IntDistribution) and distribution.log:
        at = math.exp(math.log(low - 0.5) + place * math.log((high + 0.5) / (low - 0.5)))
        return min(max(round(at), distribution.low), distribution.high)
    if distribution.step is not None:
        count = round((high - low) / distribution.step) + 1
        return distribution.low + int(place * count) * distribution.step
    return _between(low, high, place, log=distribution.log)


def _levels(distribution: BaseDistribution, levels: int) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.step is not None and not distribution.log:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        return [distribution.low + i * distribution.step for i in range(count)]
    places = [i / (levels - 1) for i in range(levels)]
    low, high = float(distribution.low), float(distribution.high)
    values = [_between(low, high, place, log=distribution.log) for place in places]
    whole = isinstance(distribution, IntDistribution)
    return sorted({round(value) for value in values}) if whole else values


def _between(low: float, high: float, place: float, *, log: bool) -> float:
    """The value at a place from 0 to 1; rounding must not leave the range."""
    value = low * (high / low) ** place if log else low + place * (high - low)
    return min(max(value, low), high)
