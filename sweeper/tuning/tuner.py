"""Ask and tell: turns trials into runs, and gives curves to the pruner and results to the study."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import TrialState

from sweeper.planning.plan import Event, Task, claim_tasks, plan
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger
from sweeper.store.run_columns import epoch_value
from sweeper.tuning.point_study import RUNS_KEY, PointStudy
from sweeper.tuning.space import format_override

#: Gives the configs of the runs that these overrides select, in addition to the command's own.
ConfigsOf = Callable[[Sequence[str]], Iterator[Mapping[str, Any]]]


@dataclass(slots=True, kw_only=True)
class _RunningTrial:
    """A trial whose run has not ended."""

    study: PointStudy  # that asked for it
    trial: optuna.Trial  # Optuna's own
    spec: RunSpec  # its run, which may be that of other trials too
    reported: int = 0  # evaluations that the pruner has seen
    pruned: str = ""  # why the pruner has stopped it; empty if it has not


@dataclass(kw_only=True)
class Tuner:
    """The studies of a command."""

    studies: Sequence[PointStudy]
    n_trials: int  # of each study
    max_concurrent: int  # trials of each study at a time
    max_attempts: int  # of this command, at a run without a result
    code: str | None  # what to do with runs trained with other sources
    configs_of: ConfigsOf
    ledger: Ledger
    expect: Callable[[RunSpec, str], None]  # called with the run of a trial, and its status
    say: Callable[[str], None]  # called with a line about each trial that ends
    _running: list[_RunningTrial] = field(default_factory=list)
    _ready: dict[str, Task] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)
    _attempts: dict[str, Attempt] = field(default_factory=dict)
    _ends_without_result: Counter[str] = field(default_factory=Counter)
    _has_stopped: bool = False

    def claim_tasks(self) -> Iterator[Task | None]:
        """Runs to start: those of interrupted trials first; None while the next must wait."""
        for study in self.studies:
            for interrupted in study.trials(TrialState.RUNNING):
                self._begin(study, study.ask(interrupted.number))
        while True:
            while self._ready:
                run_id = next(iter(self._ready))
                self._started.add(run_id)
                yield self._ready.pop(run_id)
            study = self._next_study()
            if study:
                self._begin(study, study.ask())
            elif self._running:
                yield None
            else:
                return

    def handle(self, event: Event) -> None:
        """End trials whose runs have ended, and stop those that the pruner rejects."""
        for attempt in (*event.began, *event.elsewhere):
            self._attempts[attempt.spec.run_id] = attempt
        for run_id, end in event.ended.items():
            self._handle_end(run_id, end)
        for running in list(self._running):
            if running.study.settings.is_pruned and not running.pruned:
                self._prune(running)

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
        """Plan the run of a trial; if it has a result already, the trial ends at once."""
        tuned = [format_override(key, value) for key, value in trial.params.items()]
        try:
            planned = plan(self.configs_of([*study.point, *tuned]), self.ledger)
            tasks = claim_tasks(planned, self.ledger, retry="failed", rerun=None, code=self.code)
        except ValueError as error:
            study.record_end(trial, TrialState.FAIL, "failed", str(error))
            self.say(study.describe_trial(trial.number))
            return
        (spec,) = planned.specs
        trial.set_user_attr(RUNS_KEY, [spec.run_id])
        ended = planned.ended.get(spec.run_id)
        self.expect(spec, "waiting" if tasks or not ended else ended.outcome)
        running = _RunningTrial(study=study, trial=trial, spec=spec)
        self._running.append(running)
        if tasks and spec.run_id not in self._started:
            self._ready.setdefault(spec.run_id, tasks[0])
        self._finish(running)

    def _handle_end(self, run_id: str, end: End) -> None:
        self._started.discard(run_id)
        self._ends_without_result[run_id] += not end.outcome.is_result
        for running in [r for r in self._running if r.spec.run_id == run_id]:
            if end.outcome.is_result or running.pruned:
                self._finish(running)
            elif self._ends_without_result[run_id] < self.max_attempts:
                task = Task(spec=running.spec, number=self.ledger.last_attempt(run_id) + 1)
                self._ready.setdefault(run_id, task)
            else:
                self._running.remove(running)
                study, trial = running.study, running.trial
                study.record_end(trial, TrialState.FAIL, end.outcome, end.reason)
                self.say(study.describe_trial(trial.number))

    def _finish(self, running: _RunningTrial) -> None:
        """Give a trial its result, if its run has ended."""
        study, trial, run_id = running.study, running.trial, running.spec.run_id
        if run_id in self._started or run_id in self._ready:
            return
        row = self.ledger.measured({run_id}, [study.settings.objective.column]).get(run_id)
        if study.settings.is_pruned:
            list(self._report(running))  # up to its last evaluation
        self._running.remove(running)
        if row is None or not Outcome(row["outcome"]).is_result:
            reason = running.pruned or "stopped before its end"
            study.record_end(trial, TrialState.PRUNED, "pruned", reason)
        elif not study.tell(trial, row) and not study.trials(TrialState.COMPLETE):
            self._has_stopped = True
        self.say(study.describe_trial(trial.number))
        if self._has_stopped:
            self.say("No further trials are started: the others would not be measured either.")

    def _prune(self, running: _RunningTrial) -> None:
        """Stop a trial that the pruner rejects, and its run unless another trial needs it."""
        run_id, study, number = running.spec.run_id, running.study, running.trial.number
        for number_seen, step in self._report(running):
            if step < running.spec.total_steps and study.should_prune(running.trial):
                running.pruned = f"pruned after {several(number_seen, 'evaluation')}, as trial "
                running.pruned += f"{number} of {study.name}"
                same_run = [other for other in self._running if other.spec.run_id == run_id]
                if not all(other.pruned for other in same_run):
                    return
                if run_id in self._started and run_id in self._attempts:
                    self._attempts[run_id].request_cancel(running.pruned)
                elif self._ready.pop(run_id, None):
                    for other in same_run:
                        self._finish(other)
                return

    def _report(self, running: _RunningTrial) -> Iterator[tuple[int, int]]:
        """Report a run's evaluations to the pruner, in order: how many so far, and the step."""
        column, run_id = running.study.settings.objective.column, running.spec.run_id
        attempt = self._attempts.get(run_id) or Attempt.load(
            self.ledger, run_id, self.ledger.last_attempt(run_id)
        )
        for row in attempt.curve()[running.reported :] if attempt else ():
            running.reported += 1
            if (value := epoch_value(row, column)) is not None:
                running.study.report(running.trial, value, running.reported)
            yield running.reported, row["step"]
