"""Quasi-random search: the n-th trial is fixed from the start."""

from typing import Any

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


class QuasiRandomSampler(RandomSampler):
    """Halton points with scrambled digits, Owen 2017, arXiv:1706.02808, by SciPy.

    Optuna's own QMCSampler keeps a counter in the storage, so a trial that is killed after the
    counter but before its parameters are stored loses its point. Here a point depends only on the
    trial's number.
    """

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(seed)
        self._space, self._seed = space, seed

    def point(self, number: int) -> dict[str, Any]:
        """The parameters of a trial."""
        points = qmc.Halton(len(self._space), scramble=True, rng=self._seed)
        points.fast_forward(number)
        fractions = points.random(1)[0]
        return {
            key: value_at(distribution, float(fraction))
            for (key, distribution), fraction in zip(self._space.items(), fractions, strict=True)
        }

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


def value_at(distribution: BaseDistribution, fraction: float) -> Any:
    """The value at a fraction, from 0 to below 1, of a distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(fraction * len(distribution.choices))]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    is_whole = isinstance(distribution, IntDistribution)
    if distribution.step is not None and not distribution.log:
        count = round((high - low) / distribution.step) + 1
        return distribution.low + int(fraction * count) * distribution.step
    # Each whole number gets the half unit on either side of it.
    start, end = (low - 0.5, high + 0.5) if is_whole else (low, high)
    value = start * (end / start) ** fraction if distribution.log else low + fraction * (high - low)
    value = round(value) if is_whole else value
    return min(max(value, distribution.low), distribution.high)  # rounding could leave the range
