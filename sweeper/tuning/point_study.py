"""The Optuna study of a compared point, and its result in a few lines."""

import contextlib
import importlib.metadata
import math
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from sweeper.tuning.space import edge_advice, format_override
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
                direction="maximize" if settings.objective.mode == "max" else "minimize",
                load_if_exists=True,
            )
            self._record_settings()

    def _record_settings(self) -> None:
        now = self.settings.record()
        before = self.optuna.user_attrs.get(SETTINGS_KEY)
        if before is None:
            versions = {name: importlib.metadata.version(name) for name in _CHOOSING}
            self.optuna.set_user_attr(POINT_KEY, list(self.point))
            self.optuna.set_user_attr(SPACE_KEY, self.settings.stored_space)
            self.optuna.set_user_attr(VERSIONS_KEY, versions)
            self.optuna.set_metric_names([self.settings.objective.column])
            self.optuna.set_user_attr(SETTINGS_KEY, now)  # last: if interrupted, made again
        elif changed := [name for name in now if before.get(name) != now[name]]:
            raise ValueError(
                "\n".join(
                    f"{name} must be the same as when study {self.name!r} was created; it was "
                    f"{before.get(name)}, and is now {now[name]}. Restore it, or create another "
                    "study with hydra.sweeper.study_name=NAME: it reuses the results of existing "
                    "runs."
                    for name in changed
                )
            )

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

    def ask(self, resumed: int | None = None) -> optuna.Trial:
        """A new trial, or that of this number, which an earlier command began.

        A trial that is resumed keeps the parameters that it had been given.
        """
        if (number := resumed) is None:
            waiting = self.trials(TrialState.WAITING)
            number = waiting[0].number if waiting else len(self.trials())
        with _ignore_warnings():
            self.optuna.sampler = self.settings.new_sampler(number)
            if resumed is None:
                trial = self.optuna.ask(self.settings.space)
            else:
                study_id = self._storage.get_study_id_from_name(self.name)
                trial = resume_trial(
                    self.optuna,
                    self._storage.get_trial_id_from_study_id_trial_number(study_id, number),
                )
                self._suggest_params(trial)
        trial.set_user_attr(SEED_KEY, self.settings.trial_seed(number))
        return trial

    def _suggest_params(self, trial: optuna.Trial) -> None:
        for key, chosen in self.settings.space.items():
            if isinstance(chosen, FloatDistribution):
                trial.suggest_float(key, chosen.low, chosen.high, step=chosen.step, log=chosen.log)
            elif isinstance(chosen, IntDistribution):
                trial.suggest_int(key, chosen.low, chosen.high, step=chosen.step, log=chosen.log)
            else:
                assert isinstance(chosen, CategoricalDistribution)
                trial.suggest_categorical(key, chosen.choices)

    def report(self, trial: optuna.Trial, value: float, number: int) -> None:
        """Report a trial's value at its evaluation `number` to the pruner, unless it has that."""
        if number not in self.trials()[trial.number].intermediate_values:
            trial.report(value, number)

    def should_prune(self, trial: optuna.Trial) -> bool:
        """Whether the pruner would stop a trial."""
        with _ignore_warnings():
            return trial.should_prune()

    def tell(self, trial: optuna.Trial, row: Mapping[str, Any]) -> bool:
        """Give a trial the result of its ended run, or the worst if that diverged.

        False if the run did not measure the objective; the trial has failed then.
        """
        objective = self.settings.objective
        value = row[objective.column]
        if row["outcome"] == "diverged":
            self.record_end(trial, TrialState.COMPLETE, "diverged", row["reason"], objective.worst)
        elif value is None or math.isnan(value):
            why = "was not a number" if value is not None else "was not measured; choose another"
            self.record_end(trial, TrialState.FAIL, "failed", f"{objective.column} {why}")
        else:
            self.record_end(trial, TrialState.COMPLETE, "finished", "", value)
        return value is not None or row["outcome"] == "diverged"

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

    def describe_trial(self, number: int) -> str:
        """A trial and its result, in a line."""
        trial = self.trials()[number]
        tuned = " ".join(format_override(key, v, short=True) for key, v in trial.params.items())
        value = f"{self.settings.objective.column}={trial.value:.5g}" if trial.values else ""
        outcome, reason = (trial.user_attrs.get(key, "") for key in (OUTCOME_KEY, REASON_KEY))
        line = f"{outcome:<8} trial {number} of {self.name}: {tuned}"
        return "  ".join(part for part in (line, value, reason) if part)

    def summary(self) -> str:
        """The best trial, how the trials ended, and whether a range should be wider."""
        outcomes = [str(t.user_attrs.get(OUTCOME_KEY, "running")) for t in self.trials()]
        counts = ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
        finished = [t for t in self.trials() if t.user_attrs.get(OUTCOME_KEY) == "finished"]
        if not finished:
            return f"{self.name}: no trial finished ({counts})."
        objective = self.settings.objective
        choose = max if objective.mode == "max" else min
        best = choose(finished, key=lambda trial: trial.value or 0.0)
        tuned = " ".join(format_override(key, value) for key, value in best.params.items())
        line = (
            f"{self.name}: best {objective.column}={best.value:.5g} at {tuned} "
            f"(trial {best.number}; {counts})."
        )
        space = self.settings.space
        advice = [edge_advice(key, value, space[key]) for key, value in best.params.items()]
        return "\n".join([line, *(f"    {text}." for text in advice if text)])


@contextlib.contextmanager
def _ignore_warnings() -> Generator[None]:
    """Suppress Optuna's warnings about experimental features and infinite losses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield
