"""Ask and tell: turns trials into runs, and gives curves to the pruner and results to the study."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import TrialState

from sweeper.planning.event import Event
from sweeper.planning.plan import Task, claim_tasks, plan
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger
from sweeper.store.row import value_of
from sweeper.tuning.space import override, short_override
from sweeper.tuning.study import RUNS_KEY, PointStudy

#: Gives the configs of the runs that these overrides select, in addition to the command's own.
ConfigsOf = Callable[[Sequence[str]], Iterator[Mapping[str, Any]]]
Say = Callable[[str], None]
Expect = Callable[[RunSpec, str], None]


@dataclass(slots=True, kw_only=True)
class _RunningTrial:
    """A trial whose runs have not all ended; `reported` counts the epochs that the pruner has seen.

    `pruned` is the reason if the pruner has stopped it.
    """

    study: PointStudy
    trial: optuna.Trial
    specs: Mapping[str, RunSpec]
    reported: int = 0
    pruned: str | None = None


@dataclass(kw_only=True)
class Tuner:
    """The studies of one command.

    `n_trials` and `max_concurrent` (trials at a time) are per study; one command makes up to
    `max_attempts` at a run without a result; `code` says what to do with runs trained with other
    sources. `configs_of` gives the configs that overrides select; `expect` is called with each run
    of a trial and its status so far, `say` with a line about each trial that ends.
    """

    studies: Sequence[PointStudy]
    n_trials: int
    max_concurrent: int
    max_attempts: int
    code: str | None
    configs_of: ConfigsOf
    ledger: Ledger
    expect: Expect
    say: Say
    _running: list[_RunningTrial] = field(default_factory=list)
    _ready: deque[Task] = field(default_factory=deque)
    _pending: set[str] = field(default_factory=set)
    _attempts: dict[str, Attempt] = field(default_factory=dict)
    _ends_without_result: Counter[str] = field(default_factory=Counter)
    _has_stopped: bool = False

    def tasks(self) -> Iterator[Task | None]:
        """Runs to start: those of interrupted trials first; None while the next must wait."""
        for study in self.studies:
            for frozen in study.trials(TrialState.RUNNING):
                self._begin(study, study.resume(frozen.number))
        while True:
            while self._ready:
                yield self._ready.popleft()
            study = self._next_study()
            if study:
                self._begin(study, study.ask())
            elif self._running:
                yield None
            else:
                return

    def _next_study(self) -> PointStudy | None:
        """The study with trials left that has the fewest running, then the fewest started."""
        num_running = Counter(running.study.name for running in self._running)
        left = [
            study
            for study in self.studies
            if not self._has_stopped
            and num_running[study.name] < self.max_concurrent
            and study.num_begun < study.budget(self.n_trials)
        ]
        return min(left, key=lambda s: (num_running[s.name], s.num_begun), default=None)

    def _begin(self, study: PointStudy, trial: optuna.Trial) -> None:
        """Plan the runs of a trial; if all have results already, the trial ends at once."""
        tuned = [override(key, value) for key, value in trial.params.items()]
        try:
            planned = plan(self.configs_of([*study.point, *tuned]), self.ledger)
            to_do = claim_tasks(planned, self.ledger, retry="failed", rerun=None, code=self.code)
        except ValueError as error:
            study.tell_failed(trial, "failed", str(error))
            self.say(f"failed   {_named(study, trial)}: {error}")
            return
        running = _RunningTrial(
            study=study, trial=trial, specs={s.run_id: s for s in planned.specs}
        )
        trial.set_user_attr(RUNS_KEY, list(running.specs))
        waiting = {task.spec.run_id for task in to_do}
        for run_id, spec in running.specs.items():
            known = planned.ended.get(run_id)
            self.expect(spec, "waiting" if run_id in waiting or not known else known.outcome)
        self._running.append(running)
        for task in to_do:
            if task.spec.run_id not in self._pending:
                self._make_ready(task)
        self._finish(running)

    def _make_ready(self, task: Task) -> None:
        self._pending.add(task.spec.run_id)
        self._ready.append(task)

    def handle(self, event: Event) -> None:
        """End trials whose runs have ended, and stop those that the pruner rejects."""
        for attempt in (*event.began, *event.elsewhere):
            self._attempts[attempt.spec.run_id] = attempt
        for run_id, end in event.ended.items():
            self._handle_end(run_id, end)
        for running in list(self._running):
            if running.study.settings.is_pruned and not running.pruned:
                self._prune(running)

    def _handle_end(self, run_id: str, end: End) -> None:
        self._pending.discard(run_id)
        self._ends_without_result[run_id] += not end.outcome.is_result
        for running in [o for o in self._running if run_id in o.specs]:
            if end.outcome.is_result or running.pruned:
                self._finish(running)
            else:
                self._retry(running, run_id, end)

    def _retry(self, running: _RunningTrial, run_id: str, end: End) -> None:
        if self._ends_without_result[run_id] >= self.max_attempts:
            self._close(running)
            running.study.tell_failed(running.trial, end.outcome, end.reason)
            self.say(f"{end.outcome:<8} {_named(running.study, running.trial)}: {end.reason}")
        elif run_id not in self._pending:
            number = self.ledger.last_attempt(run_id) + 1
            self._make_ready(Task(spec=running.specs[run_id], number=number))

    def _finish(self, running: _RunningTrial) -> None:
        """Give a trial its result, if all its runs have ended."""
        if any(run_id in self._pending for run_id in running.specs):
            return
        study, trial = running.study, running.trial
        rows = self.ledger.measured(set(running.specs), study.settings.columns)
        results = [row for row in rows.values() if Outcome(row["outcome"]).is_result]
        if study.settings.is_pruned:
            list(self._report(running))  # up to its last epoch
        self._close(running)
        if len(results) == len(running.specs):
            missing = study.tell(trial, results)
            if missing and not study.trials(TrialState.COMPLETE):
                self._has_stopped = True
        else:
            study.tell_pruned(trial, running.pruned or "stopped before its end")
        self.say(study.describe(trial.number))
        if self._has_stopped:
            self.say("No further trials are started: the others would not be measured either.")

    def _close(self, running: _RunningTrial) -> None:
        self._running.remove(running)
        self._drop_ready(set(running.specs) - self._needed())

    def _prune(self, running: _RunningTrial) -> None:
        """Stop a trial that the pruner rejects."""
        for epoch in self._report(running):
            is_over = epoch >= min(spec.epochs for spec in running.specs.values())
            if not is_over and running.study.should_prune(running.trial):
                self._stop(running, epoch)
                return

    def _report(self, running: _RunningTrial) -> Iterator[int]:
        """Report to the pruner, one by one, the epochs that all runs of a trial have completed."""
        column = running.study.settings.objectives[0].curve
        assert column is not None, "a pruned objective has a curve"
        curves = [self._curve(run_id, column) for run_id in running.specs]
        for epoch in range(running.reported, min(len(curve) for curve in curves)):
            found = [value_of(curve[epoch], column) for curve in curves]
            values = [value for value in found if value is not None]
            if len(values) == len(found):
                running.study.report(running.trial, sum(values) / len(values), epoch + 1)
            running.reported = epoch + 1
            yield epoch + 1

    def _curve(self, run_id: str, column: str) -> Sequence[Mapping[str, Any]]:
        attempt = self._attempts.get(run_id)
        return attempt.curve() if attempt else self.ledger.curve(run_id, column)

    def _stop(self, running: _RunningTrial, epoch: int) -> None:
        running.pruned = f"pruned after epoch {epoch}: {_named(running.study, running.trial)}"
        own = set(running.specs) - self._needed(other_than=running)
        self._drop_ready(own)
        for run_id in own & self._pending & set(self._attempts):
            self._attempts[run_id].request_cancel(running.pruned)

    def _needed(self, other_than: _RunningTrial | None = None) -> set[str]:
        """The runs of trials that have not ended."""
        return {run_id for one in self._running if one is not other_than for run_id in one.specs}

    def _drop_ready(self, run_ids: Set[str]) -> None:
        """Remove runs that no trial needs any more from those ready to start."""
        for task in [t for t in self._ready if t.spec.run_id in run_ids]:
            self._ready.remove(task)
            self._pending.discard(task.spec.run_id)


def _named(study: PointStudy, trial: optuna.Trial) -> str:
    tuned = " ".join(short_override(key, value) for key, value in trial.params.items())
    return f"trial {trial.number} of {study.name}: {tuned}"
