"""Rounds of seeds for what is undecided, and a look after each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

from analysis.stats.anytime import Looks
from analysis.stats.replicates import Array
from analysis.stats.sequential import Course, Rule, follow
from sweeper.commands.sequential.answer import has_no_spread, verdict
from sweeper.commands.sequential.cost import Budget
from sweeper.commands.sequential.question import Asked
from sweeper.commands.sweep import Launch, take_in
from sweeper.console.live import LiveTable
from sweeper.planning.event import Event
from sweeper.planning.plan import Plan, Task, tasks
from sweeper.spec import exit_codes
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.ledger import Ledger


@dataclass(slots=True)
class Study:
    """A question and the runs that answer it, whose results are always read from the ledger."""

    asked: Asked
    looks: Looks
    planned: Plan
    trained: Mapping[str, str]
    ledger: Ledger
    options: Mapping[str, Any]
    why: str = ""
    _pending: set[str] = field(default_factory=set[str])
    _stale: set[str] = field(default_factory=set[str])
    _said: int = 0

    def __post_init__(self) -> None:
        """Ignore the results of runs that will be trained again."""
        if self.options["code"] == "rerun":
            self._stale = {*self.planned.changes}

    def _id(self, arm: int, seed: int) -> str:
        run_id = self.asked.arms[arm].runs[seed].run_id
        return self.trained.get(run_id, run_id)

    def values(self) -> Array:
        """The value of each arm and seed: nan without a result, infinite if the run diverged.

        A metric that is not finite counts as infinite too: repeating the run would not change it.
        """
        asked = self.asked
        ids = [[self._id(arm, seed) for seed in asked.seeds] for arm in range(len(asked.arms))]
        rows = self.ledger.measured({i for row in ids for i in row}, [asked.metric.name])

        def value(run_id: str) -> float:
            row = rows.get(run_id)
            if row is None or run_id in self._stale or not Outcome(row["outcome"]).is_result:
                return np.nan
            measured = row[asked.metric.name]
            if row["outcome"] == Outcome.DIVERGED:
                return np.inf
            if measured is None:
                return np.nan
            return asked.sign * measured if isfinite(measured) else np.inf

        return np.array([[value(run_id) for run_id in row] for row in ids])

    def used(self, course: Course) -> list[str]:
        """The ids of the runs that the looks so far used."""
        seeds = self.asked.seeds
        return [self._id(arm, s) for arm, n in enumerate(course.used) for s in seeds[:n]]

    def course(self) -> tuple[Rule, Course]:
        """The rule and the course of looks, as far as the runs in the ledger allow."""
        rule = self.asked.rule(self.looks)
        return rule, follow(rule, self.values(), self.options["give_up"])

    def introduce(self, table: LiveTable) -> None:
        """Print the question and its largest cost, and show the results that exist."""
        arms, seeds = len(self.asked.arms), len(self.asked.seeds)
        outside = len(self.planned.points) - arms * seeds
        table.say(
            f"Question: {self.asked.text}. Looks after {self.looks.at[0]} seeds"
            f"{'' if len(self.looks.at) == 1 else ' and then up to ' + str(seeds)}; each seed "
            f"costs {several(arms, 'run')}, fewer as arms are decided; at most {arms * seeds} runs."
        )
        if outside:
            table.say(
                f"Not in the question, so not trained: {several(outside, 'point')} of the grid."
            )
        used = {*self.used(self.course()[1])}
        for spec in self.planned.specs:
            if spec.run_id in used:
                table.add(spec, self.planned.ended[spec.run_id].outcome)

    def run(self, launch: Launch, table: LiveTable) -> int:
        """Execute the runs that the looks need; return the exit code."""

        def take(event: Event) -> None:
            table.update(event)
            self._pending -= event.ended.keys()
            self._stale -= event.ended.keys()

        rounds = self._rounds(table)
        first = next(rounds, None)  # None if it is already answered
        if first is not None:
            take_in(launch(chain([first], rounds), self.ledger), take)
        return exit_codes.DONE if self.why else self._lacking(table)

    def _rounds(self, table: LiveTable) -> Iterator[Task | None]:
        """The runs of the next look, then those of the following look once these have ended."""
        while True:
            rule, course = self.course()
            if not course.needs.any():
                self.why = self._ended(rule, course)
                return
            if course.seeds > self._said:
                self._said = course.seeds
                table.say(f"After {course.seeds} seeds: {verdict(self.asked, rule)}")
            wanted = self.wanted(course)
            self.why = self._over_budget(rule, course, wanted)
            if self.why:
                return
            yield from self._tasks(wanted, table)
            while self._pending:
                yield None
            if self.wanted(course):  # some failed and are not retried
                return

    def _over_budget(self, rule: Rule, course: Course, wanted: Sequence[RunSpec]) -> str:
        """Why the budget ends the question; empty if it does not."""
        budget = Budget.of(self.planned.specs, self.ledger)
        if budget is None:
            return ""
        cost = budget.cost(wanted)
        if cost > budget.left:
            return budget.words(cost)
        more = int(budget.left / cost * (course.upto - course.seeds)) if cost else self.looks.at[-1]
        at = max(n for n in self.looks.at if n <= max(course.upto, course.seeds + more))
        is_less = course.seeds > 0 and at < self.looks.at[-1]
        if is_less and rule.chance(at) < self.options["give_up"]:
            seeds, chance = several(at, "seed"), self.options["give_up"]
            return (
                f"Stopped: the {seeds} that budget={budget.given} covers would decide it with a "
                f"probability below {chance:g}."
            )
        return ""

    def _tasks(self, wanted: Sequence[RunSpec], table: LiveTable) -> list[Task]:
        """The tasks for these runs, without failed ones unless those are to be retried."""
        part = replace(self.planned, specs=wanted)
        options = {name: self.options[name] for name in ("retry", "code")}
        found = tasks(part, self.ledger, rerun=None, **options)
        for task in found:
            self._pending.add(task.spec.run_id)
            table.add(task.spec, "waiting")
        return found

    def wanted(self, course: Course) -> list[RunSpec]:
        """The runs without a result that the next look needs, seed by seed."""
        missing = np.isnan(self.values()) & course.needs[:, None]
        missing[:, course.upto :] = False
        ids = [self._id(int(arm), self.asked.seeds[seed]) for seed, arm in np.argwhere(missing.T)]
        specs = {spec.run_id: spec for spec in self.planned.specs}
        return [specs[run_id] for run_id in dict.fromkeys(ids)]

    def _ended(self, rule: Rule, course: Course) -> str:
        """Why no more seeds are trained."""
        if course.is_hopeless:
            return self._hopeless(rule)
        if rule.is_answered:
            return f"Decided after {several(course.seeds, 'seed')}."
        if course.seeds == self.looks.at[-1]:
            return "Not decided after all seeds."
        return "Stopped: more seeds would not decide it, as runs diverged."

    def _hopeless(self, rule: Rule) -> str:
        """Why the remaining seeds would hardly answer the question."""
        if has_no_spread(rule):
            return "Stopped: differences that are the same at every seed cannot be tested."
        chance = self.options["give_up"]
        return f"Stopped: the remaining seeds would decide it with a probability below {chance:g}."

    def _lacking(self, table: LiveTable) -> int:
        """Say which runs of the next look have no result."""
        _, course = self.course()
        wanted = self.wanted(course)
        self.why = (
            f"The look after {several(course.upto, 'seed')} waits for "
            f"{several(len(wanted), 'run')}, first {wanted[0].point}."
        )
        table.say("Repeat the command to continue; retry=failed retries failed runs.")
        return exit_codes.RUN_FAILED
