"""Choices that do not depend on which run ended first: each trial sees a fixed part of its study.

Trials under way end in an order that depends on the machine. In order, the sampler of trial n is
shown the results of trials 0 to n - lag and no others, so that it chooses the same wherever and
however often the study is made.
"""

import copy
from collections.abc import Container, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class InOrder(BaseSampler):
    """A sampler that is shown each trial's fixed part of the study.

    Args:
        sampler: that chooses.
        lag: trials that may be under way, the one to be chosen included [count].
    """

    def __init__(self, sampler: BaseSampler, lag: int) -> None:
        self._sampler, self._lag = sampler, lag

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """As the sampler has it."""
        return self._sampler.infer_relative_search_space(self._seen(study, trial), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As the sampler has it."""
        return self._sampler.sample_relative(self._seen(study, trial), trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """As the sampler has it."""
        seen = self._seen(study, trial)
        return self._sampler.sample_independent(seen, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the sampler has it."""
        self._sampler.before_trial(self._seen(study, trial), trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """As the sampler has it."""
        self._sampler.after_trial(study, trial, state, values)

    def _seen(self, study: Study, trial: FrozenTrial) -> Study:
        return _Seen(study, trial.number, trial.number - self._lag)


class _Seen(optuna.Study):
    """A study as one trial sees it.

    Args:
        study: the whole of it.
        number: of the trial; later ones are not shown.
        last_known: number of the last trial shown with its result; later ones are under way.
    """

    def __init__(self, study: Study, number: int, last_known: int) -> None:
        super().__init__(study.study_name, study._storage, study.sampler, study.pruner)  # pyright: ignore[reportPrivateUsage]
        self._number, self._last_known = number, last_known

    def _get_trials(  # what Optuna's samplers read a study by
        self,
        deepcopy: bool = True,  # noqa: FBT001, FBT002
        states: Container[TrialState] | None = None,
        use_cache: bool = False,  # noqa: FBT001, FBT002
    ) -> list[FrozenTrial]:
        del deepcopy, use_cache
        trials = [t for t in super()._get_trials(deepcopy=False) if t.number <= self._number]
        shown = [t if t.number <= self._last_known else _under_way(t) for t in trials]
        return [t for t in shown if states is None or t.state in states]


def _under_way(trial: FrozenTrial) -> FrozenTrial:
    shown = copy.copy(trial)
    shown.state, shown.values = TrialState.RUNNING, None
    return shown
