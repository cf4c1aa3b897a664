"""The Optuna study of a compared point, and its result in a few lines."""

import contextlib
import importlib.metadata
import json
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from sweeper.tuning.space import edge_advice, format_override, format_short
from sweeper.tuning.study_settings import StudySettings
from sweeper.upstream.others import resume_trial

#: User attributes of studies.
SETTINGS_KEY, POINT_KEY, SPACE_KEY, VERSIONS_KEY = "settings", "point", "space", "versions"
#: User attributes of trials.
RUNS_KEY, OUTCOME_KEY, REASON_KEY, SEED_KEY = "run_ids", "outcome", "reason", "sampler_seed"

#: Packages that determine which trials are chosen: other versions may choose differently.
_CHOOSING = ("optuna", "numpy", "scipy", "cmaes", "torch")


class PointStudy:
    """The study of a compared point.

    The name is the same whenever the same point is tuned; the point is its overrides, as typed.
    ValueError if the storage has a study of this name with other settings.
    """

    def __init__(
        self, name: str, point: Sequence[str], settings: StudySettings, storage: BaseStorage
    ) -> None:
        self.name, self.point, self.settings, self._storage = name, point, settings, storage
        with _ignore_warnings():
            self.optuna = optuna.create_study(
                study_name=name,
                storage=storage,
                sampler=settings.new_sampler(0),
                pruner=settings.new_pruner(),
                direction=settings.objective.direction,
                load_if_exists=True,
            )
        self._record()

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The trials in these states, or all."""
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    @property
    def num_begun(self) -> int:
        """Trials begun so far, by this command and earlier commands [count]."""
        return len(self.trials()) - len(self.trials(TrialState.WAITING))

    @property
    def run_ids(self) -> list[str]:
        """The runs of all trials so far."""
        return [run_id for t in self.trials() for run_id in t.user_attrs.get(RUNS_KEY, ())]

    def budget(self, n_trials: int) -> int:
        """Trials that the study may start: those requested, or all that are queued for a retry."""
        return max(n_trials, len(self.trials()) if self.trials(TrialState.WAITING) else 0)

    def retry_failed(self) -> int:
        """Queue the failed trials again, as new trials; how many."""
        failed = self.failed_trials()
        for trial in failed:
            with _ignore_warnings():
                self.optuna.enqueue_trial(trial.params, skip_if_exists=False)
        return len(failed)

    def failed_trials(self) -> list[FrozenTrial]:
        """The failed trials that no later trial has repeated."""
        others = [t.params for t in self.trials() if t.state != TrialState.FAIL]
        return [t for t in self.trials(TrialState.FAIL) if t.params not in others]

    def ask(self) -> optuna.Trial:
        """A new trial."""
        waiting = self.trials(TrialState.WAITING)
        number = waiting[0].number if waiting else len(self.trials())
        with _ignore_warnings():
            self.optuna.sampler = self.settings.new_sampler(number)
            trial = self.optuna.ask(self.settings.space)
        trial.set_user_attr(SEED_KEY, self.settings.seed(number))
        return trial

    def resume(self, number: int) -> optuna.Trial:
        """A trial that an earlier command began, with the same parameters."""
        study_id = self._storage.get_study_id_from_name(self.name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        with _ignore_warnings():
            self.optuna.sampler = self.settings.new_sampler(number)
            trial = resume_trial(self.optuna, trial_id)
            for key in self.settings.space:
                self._suggest(trial, key)
        trial.set_user_attr(SEED_KEY, self.settings.seed(number))
        return trial

    def report(self, trial: optuna.Trial, value: float, epoch: int) -> None:
        """Report a trial's value after an epoch to the pruner, unless it has that already."""
        if epoch not in self.trials()[trial.number].intermediate_values:
            trial.report(value, epoch)

    def should_prune(self, trial: optuna.Trial) -> bool:
        """Whether the pruner would stop a trial."""
        with _ignore_warnings():
            return trial.should_prune()

    def tell(self, trial: optuna.Trial, row: Mapping[str, Any]) -> str | None:
        """Give a trial the result of its ended run, or the worst if that diverged.

        Returns:
            The column that should judge the trial but was not measured; None if it was.
        """
        objective = self.settings.objective
        value = row[objective.column]
        if row["outcome"] == "diverged":
            self.record_end(trial, TrialState.COMPLETE, "diverged", row["reason"], objective.worst)
        elif value is not None and value != value:
            reason = f"{objective.column} was not a number"
            self.record_end(trial, TrialState.FAIL, "failed", reason)
        elif value is None:
            reason = f"{objective.column} was not measured; choose another"
            self.record_end(trial, TrialState.FAIL, "failed", reason)
            return objective.column
        else:
            self.record_end(trial, TrialState.COMPLETE, "finished", "", value)
        return None

    def describe(self, number: int) -> str:
        """A trial and its result, in a line."""
        trial = self.trials()[number]
        tuned = " ".join(format_short(key, value) for key, value in trial.params.items())
        value = f"{self.settings.objective.column}={trial.value:.5g}" if trial.values else ""
        outcome, reason = (trial.user_attrs.get(key, "") for key in (OUTCOME_KEY, REASON_KEY))
        line = f"{outcome:<8} trial {number} of {self.name}: {tuned}"
        return "  ".join(part for part in (line, value, reason) if part)

    def record_end(
        self,
        trial: optuna.Trial,
        state: TrialState,
        outcome: str,
        reason: str,
        value: float | None = None,
    ) -> None:
        """Record how a trial ended: why it failed or was pruned, or its value."""
        trial.set_user_attr(OUTCOME_KEY, outcome)
        if reason:
            trial.set_user_attr(REASON_KEY, reason)
        with _ignore_warnings():
            self.optuna.tell(trial, value, state=state, skip_if_finished=True)

    def _suggest(self, trial: optuna.Trial, key: str) -> None:
        chosen = self.settings.space[key]
        if isinstance(chosen, FloatDistribution):
            trial.suggest_float(key, chosen.low, chosen.high, step=chosen.step, log=chosen.log)
        elif isinstance(chosen, IntDistribution):
            trial.suggest_int(key, chosen.low, chosen.high, step=chosen.step, log=chosen.log)
        else:
            assert isinstance(chosen, CategoricalDistribution)
            trial.suggest_categorical(key, chosen.choices)

    def _record(self) -> None:
        now = self.settings.record()
        before = self.optuna.user_attrs.get(SETTINGS_KEY)
        if before is None:
            versions = {name: importlib.metadata.version(name) for name in _CHOOSING}
            self.optuna.set_user_attr(POINT_KEY, list(self.point))
            self.optuna.set_user_attr(SPACE_KEY, self.settings.stored_space)
            self.optuna.set_user_attr(VERSIONS_KEY, versions)
            with _ignore_warnings():
                self.optuna.set_metric_names([self.settings.objective.column])
            self.optuna.set_user_attr(SETTINGS_KEY, now)  # last: if interrupted, made again
        elif changed := [name for name in now if before.get(name) != now[name]]:
            pairs = ((name, str(before.get(name)), now[name]) for name in changed)
            raise ValueError("\n".join(_describe_change(self.name, *pair) for pair in pairs))


def _describe_change(study: str, name: str, before: str, now: str) -> str:
    if name == "the search space":
        before, now = (
            "; ".join(
                f"{key} {json.loads(text)['attributes']}".replace("'", "")
                for key, text in json.loads(space).items()
            )
            for space in (before, now)
        )
    return (
        f"{name} must be the same as when study {study!r} was created; it was {before}, and is now "
        f"{now}. Restore it, or create another study with hydra.sweeper.study_name=NAME: it reuses "
        "the results of existing runs."
    )


@contextlib.contextmanager
def _ignore_warnings() -> Generator[None]:
    """Suppress Optuna's warnings about experimental features and infinite losses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def summarize(study: PointStudy) -> str:
    """The best trial of a study, how its trials ended, and whether a range should be wider."""
    outcomes = [str(t.user_attrs.get(OUTCOME_KEY, "running")) for t in study.trials()]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
    finished = [t for t in study.trials() if t.user_attrs.get(OUTCOME_KEY) == "finished"]
    if not finished:
        return f"{study.name}: no trial finished ({counts})."
    objective = study.settings.objective
    sign = -1 if objective.direction == "maximize" else 1
    best = min(finished, key=lambda trial: sign * (trial.value or 0.0))
    tuned = " ".join(format_override(key, value) for key, value in best.params.items())
    line = (
        f"{study.name}: best {objective.column}={best.value:.5g} at {tuned} "
        f"(trial {best.number}; {counts})."
    )
    space = study.settings.space
    advice = [edge_advice(key, value, space[key]) for key, value in best.params.items()]
    return "\n".join([line, *(f"    {text}." for text in advice if text)])
