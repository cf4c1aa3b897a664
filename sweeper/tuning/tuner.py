"""Ask and tell: trials become runs, their curves feed the pruner, their rows are told."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import TrialState

from sweeper.planning.plan import plan, tasks
from sweeper.planning.tasks import End, Event, Task
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger
from sweeper.tuning.space import short, word
from sweeper.tuning.study import RUNS_KEY, PointStudy

#: From words, given after those of the command, to the configs of the runs that they stand for.
ConfigsOf = Callable[[Sequence[str]], Iterator[Mapping[str, Any]]]
Say = Callable[[str], None]
Expect = Callable[[RunSpec, str], None]


@dataclass(slots=True, kw_only=True)
class _Open:
    """A trial whose runs have not all ended.

    Attributes:
        study: where it belongs.
        trial: the trial.
        specs: its runs, by id; several if it is a mean.
        reported: epochs that the pruner has seen.
        pruned: why it is being stopped; None while it may go on.
    """

    study: PointStudy
    trial: optuna.Trial
    specs: Mapping[str, RunSpec]
    reported: int = 0
    pruned: str | None = None


@dataclass(kw_only=True)
class Tuner:
    """The studies of one command.

    Attributes:
        studies: one for each compared point.
        n_trials: of each.
        at_once: trials of a study that may be under way [count].
        tries: of a run without a result, in one command [count].
        configs_of: the runs that words stand for.
        ledger: what is known of runs.
        expect: told of each run that a trial comes to, and how the ledger has it.
        say: told what came of each trial.
    """

    studies: Sequence[PointStudy]
    n_trials: int
    at_once: int
    tries: int
    configs_of: ConfigsOf
    ledger: Ledger
    expect: Expect
    say: Say
    _open: list[_Open] = field(default_factory=list)
    _ready: deque[Task] = field(default_factory=deque)
    _under_way: set[str] = field(default_factory=set)
    _attempts: dict[str, Attempt] = field(default_factory=dict)
    _ends_without_result: Counter[str] = field(default_factory=Counter)

    def tasks(self) -> Iterator[Task | None]:
        """Runs to be made: those of trials cut short first, then of new trials.

        Yields:
            A task; or None while the next trial must wait for the end of others.
        """
        for study in self.studies:
            for frozen in study.trials(TrialState.RUNNING):
                self._begin(study, study.resumed(frozen))
        while True:
            while self._ready:
                yield self._ready.popleft()
            study = self._next_study()
            if study:
                self._begin(study, study.ask())
            elif self._open:
                yield None
            else:
                return

    def _next_study(self) -> PointStudy | None:
        """The study with the fewest trials under way, then the fewest begun, with any left."""
        open_trials = Counter(opened.study.name for opened in self._open)
        left = [
            study
            for study in self.studies
            if open_trials[study.name] < self.at_once
            and study.num_begun < study.budget(self.n_trials)
            and study.knows_enough
        ]
        return min(left, key=lambda s: (open_trials[s.name], s.num_begun), default=None)

    def _begin(self, study: PointStudy, trial: optuna.Trial) -> None:
        """Plan the runs of a trial; tell it at once if the ledger has them all."""
        tuned = [word(key, value) for key, value in trial.params.items()]
        try:
            planned = plan(self.configs_of([*study.words, *tuned]), self.ledger)
        except ValueError as error:
            study.tell_failed(trial, "failed", str(error))
            self.say(f"failed   {_named(study, trial)}: {error}")
            return
        opened = _Open(study=study, trial=trial, specs={s.run_id: s for s in planned.specs})
        trial.set_user_attr(RUNS_KEY, list(opened.specs))
        to_do = tasks(planned, self.ledger, retry="failed", rerun=None)
        waiting = {task.spec.run_id for task in to_do}
        for run_id, spec in opened.specs.items():
            known = planned.ended.get(run_id)
            self.expect(spec, "waiting" if run_id in waiting or not known else known.outcome)
        self._open.append(opened)
        for task in to_do:
            if task.spec.run_id not in self._under_way:
                self._make_ready(task)
        self._settle(opened)

    def _make_ready(self, task: Task) -> None:
        self._under_way.add(task.spec.run_id)
        self._ready.append(task)

    def take_in(self, event: Event) -> None:
        """Follow what happens to the runs: tell trials that are done, stop those that lag."""
        for attempt in (*event.began, *event.elsewhere):
            self._attempts[attempt.spec.run_id] = attempt
        for end in event.ended:
            self._ended(end)
        for opened in list(self._open):
            if opened.study.design.is_pruned and not opened.pruned:
                self._prune(opened)

    def _ended(self, end: End) -> None:
        self._under_way.discard(end.run_id)
        self._ends_without_result[end.run_id] += not end.outcome.is_result
        for opened in [o for o in self._open if end.run_id in o.specs]:
            if end.outcome.is_result or opened.pruned:
                self._settle(opened)
            else:
                self._try_again(opened, end)

    def _try_again(self, opened: _Open, end: End) -> None:
        if self._ends_without_result[end.run_id] >= self.tries:
            self._close(opened)
            opened.study.tell_failed(opened.trial, end.outcome, end.reason)
            self.say(f"{end.outcome:<8} {_named(opened.study, opened.trial)}: {end.reason}")
        elif end.run_id not in self._under_way:
            number = self.ledger.last_attempt(end.run_id) + 1
            self._make_ready(Task(spec=opened.specs[end.run_id], number=number))

    def _settle(self, opened: _Open) -> None:
        """Tell a trial, if all its runs have ended."""
        if any(run_id in self._under_way for run_id in opened.specs):
            return
        study, trial = opened.study, opened.trial
        columns = ["outcome", "reason", *study.columns]
        rows = self.ledger.rows(set(opened.specs), list(dict.fromkeys(columns)))
        results = [row for row in rows.values() if Outcome(row["outcome"]).is_result]
        if study.design.is_pruned:
            deque(self._report(opened), maxlen=0)
        self._close(opened)
        if len(results) == len(opened.specs):
            study.tell(trial, results)
        else:
            study.tell_pruned(trial, opened.pruned or "stopped before its end")
        self.say(study.told(trial.number))

    def _close(self, opened: _Open) -> None:
        """A trial needs its runs no more; those that no other trial needs are not begun."""
        self._open.remove(opened)
        needed = {run_id for other in self._open for run_id in other.specs}
        for task in [t for t in self._ready if t.spec.run_id not in needed]:
            self._ready.remove(task)
            self._under_way.discard(task.spec.run_id)

    def _prune(self, opened: _Open) -> None:
        """Stop a trial that lags behind the others."""
        for epoch in self._report(opened):
            is_over = epoch >= min(spec.epochs for spec in opened.specs.values())
            if not is_over and opened.study.should_prune(opened.trial):
                self._stop(opened, epoch)
                return

    def _report(self, opened: _Open) -> Iterator[int]:
        """Show the pruner, one by one, the epochs that all runs of a trial have completed."""
        column = opened.study.design.objectives[0].curve
        assert column is not None, "a pruned objective has a curve"
        curves = [self._curve(run_id, column) for run_id in opened.specs]
        for epoch in range(opened.reported, min(len(curve) for curve in curves)):
            values = [curve[epoch][column] for curve in curves]
            if all(value is not None for value in values):
                opened.study.report(opened.trial, sum(values) / len(values), epoch + 1)
            opened.reported = epoch + 1
            yield epoch + 1

    def _curve(self, run_id: str, column: str) -> Sequence[Mapping[str, Any]]:
        attempt = self._attempts.get(run_id)
        return attempt.curve() if attempt else self.ledger.curve(run_id, column)

    def _stop(self, opened: _Open, epoch: int) -> None:
        shared = {run_id for other in self._open if other is not opened for run_id in other.specs}
        opened.pruned = f"pruned after epoch {epoch}: {_named(opened.study, opened.trial)}"
        for run_id in opened.specs:
            if run_id in self._under_way - shared and run_id in self._attempts:
                self._attempts[run_id].ask_to_stop(opened.pruned)
        for task in [t for t in self._ready if t.spec.run_id in opened.specs]:
            if task.spec.run_id not in shared:
                self._ready.remove(task)
                self._under_way.discard(task.spec.run_id)


def _named(study: PointStudy, trial: optuna.Trial) -> str:
    tuned = " ".join(short(key, value) for key, value in trial.params.items())
    return f"trial {trial.number} of {study.name}: {tuned}"
