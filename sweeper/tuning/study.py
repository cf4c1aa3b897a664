"""One Optuna study: of one compared point."""

import contextlib
import importlib.metadata
import json
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from sweeper.tuning.design import IN_ORDER, NOT_IN_ORDER, Design
from sweeper.tuning.objectives import violations
from sweeper.tuning.space import short, to_json

#: User attributes of studies.
DESIGN_KEY, POINT_KEY, SPACE_KEY, VERSIONS_KEY = "design", "point", "space", "versions"
#: User attributes of trials.
RUNS_KEY, OUTCOME_KEY, REASON_KEY, SEED_KEY = "run_ids", "outcome", "reason", "sampler_seed"

#: What chooses trials; other versions may choose others from the same seed.
_CHOOSING = ("optuna", "numpy", "scipy", "cmaes", "torch")


class PointStudy:
    """The study of one compared point.

    Args:
        name: of the study, the same whenever the same point is tuned.
        words: of the point, as typed.
        design: how trials are chosen and judged.
        storage: where it is kept; made there if it is new.

    Raises:
        ValueError: if the storage has a study of this name with another design.
    """

    def __init__(
        self, name: str, words: Sequence[str], design: Design, storage: BaseStorage
    ) -> None:
        self.words, self.design = words, design
        with contextlib.suppress(DuplicatedStudyError), _quiet():
            optuna.create_study(
                study_name=name,
                storage=storage,
                directions=[o.direction for o in design.objectives],
            )
        with _quiet():
            self.optuna = optuna.load_study(
                study_name=name, storage=storage, sampler=design.new_sampler(0),
                pruner=design.new_pruner(),
            )  # fmt: skip
        self._record()

    @property
    def name(self) -> str:
        """Of the study."""
        return self.optuna.study_name

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The trials in these states, or all."""
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    @property
    def num_begun(self) -> int:
        """Trials asked for so far, by this command and earlier ones [count]."""
        return len(self.trials()) - len(self.trials(TrialState.WAITING))

    def budget(self, n_trials: int) -> int:
        """Trials that the study may begin: those asked for, or all that are queued to be repeated.

        Args:
            n_trials: asked for [count].
        """
        return max(n_trials, self.num_begun + len(self.trials(TrialState.WAITING)))

    @property
    def next_number(self) -> int:
        """Of the trial that would be begun next."""
        waiting = self.trials(TrialState.WAITING)
        return waiting[0].number if waiting else len(self.trials())

    @property
    def knows_enough(self) -> bool:
        """Whether the next trial can be chosen: in order, all that it rests on must have ended."""
        if self.design.lag is None:
            return True
        running = self.trials(TrialState.RUNNING)
        return not running or self.next_number - running[0].number < self.design.lag

    def repeat_failed(self) -> int:
        """Queue the trials that failed once more, as new trials; how many."""
        again = self.failed()
        for trial in again:
            with _quiet():
                self.optuna.enqueue_trial(trial.params, skip_if_exists=False)
        return len(again)

    def failed(self) -> list[FrozenTrial]:
        """The trials that failed and that no later trial has repeated."""
        others = [t.params for t in self.trials() if t.state != TrialState.FAIL]
        return [t for t in self.trials(TrialState.FAIL) if t.params not in others]

    def report(self, trial: optuna.Trial, value: float, epoch: int) -> None:
        """Show the pruner how a trial stands after an epoch."""
        if epoch not in self.trials()[trial.number].intermediate_values:
            trial.report(value, epoch)

    def should_prune(self, trial: optuna.Trial) -> bool:
        """Whether the pruner would stop a trial."""
        with _quiet():
            return trial.should_prune()

    def told(self, number: int) -> str:
        """What came of a trial, in a line."""
        frozen = self.trials()[number]
        tuned = " ".join(short(key, value) for key, value in frozen.params.items())
        columns = [objective.column for objective in self.design.objectives]
        values = frozen.values or ()
        found = " ".join(f"{c}={v:.5g}" for c, v in zip(columns, values, strict=False))
        outcome, reason = (frozen.user_attrs.get(key, "") for key in (OUTCOME_KEY, REASON_KEY))
        return f"{outcome:<8} trial {number} of {self.name}: {tuned}  {found}  {reason}".rstrip()

    def ask(self) -> optuna.Trial:
        """A new trial."""
        number = self.next_number
        with _quiet():
            self.optuna.sampler = self.design.new_sampler(number)
            trial = self.optuna.ask(self.design.space)
        trial.set_user_attr(SEED_KEY, self.design.seed(number))
        return trial

    def resumed(self, frozen: FrozenTrial) -> optuna.Trial:
        """A trial that was begun by an earlier command, with the parameters it had then."""
        with _quiet():
            self.optuna.sampler = self.design.new_sampler(frozen.number)
            trial = optuna.Trial(self.optuna, frozen._trial_id)  # pyright: ignore[reportPrivateUsage]
            for key, distribution in self.design.space.items():
                _suggest(trial, key, distribution)
        trial.set_user_attr(SEED_KEY, self.design.seed(frozen.number))
        return trial

    def tell(self, trial: optuna.Trial, rows: Sequence[Mapping[str, Any]]) -> None:
        """Give a trial the result of its runs: means, or the worst if one diverged.

        Args:
            trial: the trial.
            rows: of the runs table, all finished or diverged.
        """
        diverged = [row for row in rows if row["outcome"] == "diverged"]
        trial.set_user_attr(OUTCOME_KEY, "diverged" if diverged else "finished")
        if diverged:
            trial.set_user_attr(REASON_KEY, diverged[0]["reason"])
            values = [objective.worst for objective in self.design.objectives]
            self._tell_constraints(trial, dict.fromkeys(self.design.constraints, float("inf")))
        else:
            means = {name: _mean(rows, name) for name in self.columns}
            if missing := [name for name, mean in means.items() if mean is None]:
                self.tell_failed(trial, "failed", f"{missing[0]} was not measured; choose another")
                return
            measured = {name: mean for name, mean in means.items() if mean is not None}
            values = [measured[o.column] for o in self.design.objectives]
            self._tell_constraints(trial, measured)
        with _quiet():
            self.optuna.tell(trial, values, skip_if_finished=True)

    @property
    def columns(self) -> list[str]:
        """Of the runs table, that judge a trial."""
        return [*(o.column for o in self.design.objectives), *self.design.constraints]

    def tell_failed(self, trial: optuna.Trial, outcome: str, reason: str) -> None:
        """Give up a trial."""
        self._tell_state(trial, TrialState.FAIL, outcome, reason)

    def tell_pruned(self, trial: optuna.Trial, reason: str) -> None:
        """Note that a trial was stopped for being worse than others."""
        self._tell_state(trial, TrialState.PRUNED, "pruned", reason)

    def _tell_state(self, trial: optuna.Trial, state: TrialState, outcome: str, why: str) -> None:
        trial.set_user_attr(OUTCOME_KEY, outcome)
        trial.set_user_attr(REASON_KEY, why)
        with _quiet():
            self.optuna.tell(trial, state=state, skip_if_finished=True)

    def _tell_constraints(self, trial: optuna.Trial, row: Mapping[str, float]) -> None:
        for name, passed_by in violations(self.design.constraints, row).items():
            trial.set_constraint(name, passed_by if passed_by > 0 else min(passed_by, 0.0))

    def _record(self) -> None:
        now = self.design.record()
        before = self.optuna.user_attrs.get(DESIGN_KEY)
        if before is None:
            self.optuna.set_user_attr(POINT_KEY, list(self.words))
            self.optuna.set_user_attr(SPACE_KEY, to_json(self.design.space))
            versions = {name: importlib.metadata.version(name) for name in _CHOOSING}
            self.optuna.set_user_attr(VERSIONS_KEY, versions)
            with _quiet():
                self.optuna.set_metric_names([o.column for o in self.design.objectives])
            self.optuna.set_user_attr(DESIGN_KEY, now)
            return
        before = {IN_ORDER: NOT_IN_ORDER, **before}
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            msg = "\n".join(
                _changed(self.name, name, before.get(name), now[name]) for name in changed
            )
            raise ValueError(msg)


def _changed(study: str, name: str, before: str | None, now: str) -> str:
    if name == "the space":
        before, now = _spelled(before), _spelled(now)
    return (
        f"{name} must be what it was when study {study!r} began; it was {before}, and now is "
        f"{now}. Go back to it, or begin another study with hydra.sweeper.study=NAME: runs "
        "already trained are told, not trained again."
    )


def _spelled(space: str | None) -> str:
    parts: list[str] = []
    for key, text in json.loads(space or "{}").items():
        attributes = json.loads(text)["attributes"]
        parts.append(f"{key} {attributes}".replace("'", ""))
    return "; ".join(parts)


def _suggest(trial: optuna.Trial, key: str, distribution: BaseDistribution) -> None:
    if isinstance(distribution, FloatDistribution):
        trial.suggest_float(
            key, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(
            key, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    else:
        trial.suggest_categorical(key, getattr(distribution, "choices"))  # noqa: B009


def _mean(rows: Sequence[Mapping[str, Any]], column: str) -> float | None:
    values = [row[column] for row in rows]
    if any(value is None or value != value for value in values):
        return None
    return sum(values) / len(values)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without what Optuna says of its own experimental parts, and of infinite losses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message=".*(inf|independent).*", category=UserWarning)
        yield
