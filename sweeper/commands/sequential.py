"""A sequential sweep: seeds are added to what is undecided, with a look after each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sweeper import import_own
from sweeper.commands.sweep import Launch, guard, handle_events, set_aside_and_report
from sweeper.commands.user_facts import add_facts
from sweeper.console.live import LiveTable, live_table
from sweeper.launch.local.slots import find_device
from sweeper.planning.budget import check_budget, left_hours, spent_hours
from sweeper.planning.code_changes import check_code, describe_changes
from sweeper.planning.plan import Event, Plan, Task, claim_tasks, plan
from sweeper.spec.outcomes import DONE, RUN_FAILED, Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import read_model, several
from sweeper.spec.values import Count, Fraction, Rule, Settings
from sweeper.store.ledger import Ledger

import_own("analysis")  # a project may have a module of that name

from analysis import sequential as questions  # noqa: E402


def run_sequential(
    configs: Iterable[Mapping[str, Any]], options: Mapping[str, Any], launch: Launch
) -> int:
    """Answer a question about a grid; return 0 if nothing is left to do, 1 if a run has no result.

    Args:
        configs: of the grid's points, resolved.
        options: `first_look`, `seeds_per_look` and `give_up` of `hydra.sweeper`.
        launch: executes runs.

    Raises:
        ValueError: for bad input, before anything starts.
    """
    asked = [*configs]
    options = {**asked[0], **options}
    configs = [{**config, "question": None} for config in asked]  # of this command, not of a run
    ledger = Ledger.from_setting(options["results"])
    _check_options(options)
    set_aside_and_report(ledger)
    planned = plan(add_facts(configs, ledger.results), ledger)
    check_code(planned.changes, options["code"], num_runs=len(planned.specs))
    metric = questions.find_metric(options["metric"], options["metric_mode"])
    question = questions.parse_question(options["question"], planned.specs, metric)
    looks = questions.Looks.plan(
        options["seeds_per_look"], first=options["first_look"], last=len(question.seeds)
    )
    study = Study(question, looks, planned, ledger, options)
    record = questions.find_record(question, looks, ledger.results, study.num_known)
    study.check_times_known()
    ledger.prepare()
    keys = [arm.name.partition("=")[0] for arm in question.arms][:1]
    with live_table([], ledger, keys) as table:
        if code := describe_changes(planned.changes, options["code"]):
            table.say(code)
        for line in (*planned.distinct_warnings, *planned.notes):
            table.say(line)
        study.introduce(table)
        questions.record_question(record, question, looks, answer=None)
        return guard(lambda: study.answer(launch, table, record), table, ledger)


class _Pace(Settings, extra="ignore"):
    """The options of conf/hydra/sweeper/sequential.yaml."""

    first_look: Annotated[
        int,
        Field(ge=questions.LEAST_SEEDS),
        Rule(f"a whole number, {questions.LEAST_SEEDS} or more"),
    ]
    seeds_per_look: Count
    give_up: Fraction


def _check_options(options: Mapping[str, Any]) -> None:
    if not options["question"]:
        msg = (
            "question must be given with hydra/sweeper=sequential; got none. Write "
            "'question=\"best warmup at batch=3840\"'; docs/sequential.md has the others."
        )
        raise ValueError(msg)
    read_model(_Pace, options, "hydra.sweeper.")
    if options["rerun"]:
        msg = (
            "rerun must be null with hydra/sweeper=sequential, whose answer would change with it; "
            f"got rerun={options['rerun']}. Use another results folder."
        )
        raise ValueError(msg)


@dataclass(slots=True)
class Study:
    """A question and the runs that answer it, whose results are always read from the ledger."""

    question: questions.Question
    looks: questions.Looks
    planned: Plan
    ledger: Ledger
    options: Mapping[str, Any]
    why: str = ""
    _pending: set[str] = field(default_factory=set[str])
    _stale: set[str] = field(init=False)
    _seeds_reported: int = 0

    def __post_init__(self) -> None:
        """Ignore the results of runs that will be trained again."""
        self._stale = {*self.planned.changes} if self.options["code"] == "rerun" else set()

    def introduce(self, table: LiveTable) -> None:
        """Print the question and its largest cost, and show the results that exist."""
        arms, seeds = len(self.question.arms), len(self.question.seeds)
        outside = len(self.planned.specs) - arms * seeds
        table.say(
            f"Question: {self.question.text}. Looks after {self.looks.at[0]} seeds"
            f"{'' if len(self.looks.at) == 1 else ' and then up to ' + str(seeds)}; each seed "
            f"costs {several(arms, 'run')}, fewer as arms are decided; at most {arms * seeds} runs."
        )
        if outside:
            points = several(outside, "point")
            table.say(f"Not in the question, so not trained: {points} of the grid.")
        used = {*self._used_runs(self._take_looks()[1])}
        for spec in self.planned.specs:
            if spec.run_id in used:
                table.add(spec, self.planned.ended[spec.run_id].outcome)

    def answer(self, launch: Launch, table: LiveTable, record: questions.Asked) -> int:
        """Execute the runs that the looks need, record the answer; return the exit code."""

        def handle(event: Event) -> None:
            table.update(event)
            self._pending -= event.ended.keys()
            self._stale -= event.ended.keys()

        rounds = self._rounds(table)
        first = next(rounds, None)  # None if it is already answered
        if first is not None:
            handle_events(launch(chain([first], rounds), self.ledger), handle)
        rule, course = self._take_looks()
        code = DONE if self.why else RUN_FAILED
        if code == RUN_FAILED:
            missing = self._missing_runs(course)
            self.why = (
                f"The look after {several(course.upto, 'seed')} waits for "
                f"{several(len(missing), 'run')}, first {missing[0].point}."
            )
            table.say("Repeat the command to continue; retry=failed retries failed runs.")
        runs, answer = self._used_runs(course), questions.describe_verdict(self.question, rule)
        questions.record_question(
            record, self.question, self.looks, answer=answer, why=self.why, runs=runs
        )
        table.say(questions.describe_end(self.question, rule, course, self.why, runs))
        table.say(record.place)
        return code

    @property
    def num_known(self) -> int:
        """How many runs of the question have a result."""
        return int((~np.isnan(self._values())).sum())

    def check_times_known(self) -> None:
        """Refuse a budget if the time of a run of the first look is not known.

        ValueError names it.
        """
        runs = self._missing_runs(self._take_looks()[1])
        if not runs or runs[0].config.budget is None:
            return
        hours = left_hours(runs, self.ledger, find_device(runs=1))
        if None in hours.values():
            check_budget(runs[0].config, hours, runs, spent=0.0)

    def _rounds(self, table: LiveTable) -> Iterator[Task | None]:
        """The runs of the next look, then those of the following look once these have ended."""
        while True:
            rule, course = self._take_looks()
            if not course.needs.any():
                self.why = self._why_ended(rule, course)
                return
            if course.seeds > self._seeds_reported:
                self._seeds_reported = course.seeds
                verdict = questions.describe_verdict(self.question, rule)
                table.say(f"After {course.seeds} seeds: {verdict}")
            missing = self._missing_runs(course)
            self.why = self._why_over_budget(missing)
            if self.why:
                return
            part = replace(self.planned, specs=missing)
            options = {name: self.options[name] for name in ("retry", "code")}
            for task in claim_tasks(part, self.ledger, rerun=None, **options):
                self._pending.add(task.spec.run_id)
                table.add(task.spec, "waiting")
                yield task
            while self._pending:
                yield None
            if self._missing_runs(course):  # some failed and are not retried
                return

    def _take_looks(self) -> tuple[questions.Rule, questions.Course]:
        """The rule after the looks that the runs in the ledger allow, and how far they go."""
        rule = self.question.rule(self.looks)
        return rule, questions.take_looks(rule, self._values(), self.options["give_up"])

    def _values(self) -> npt.NDArray[np.float64]:
        """The value of each arm and seed: nan without a result, the worst if the run diverged.

        A metric that is not finite is the worst too: repeating the run would not change it.
        """
        question, name = self.question, self.question.metric.name
        ids = [[arm.runs[seed].run_id for seed in question.seeds] for arm in question.arms]
        rows = self.ledger.measured({run_id for row in ids for run_id in row}, [name])
        worst = -np.inf

        def value(run_id: str) -> float:
            row = rows.get(run_id)
            if row is None or run_id in self._stale or not Outcome(row["outcome"]).is_result:
                return np.nan
            if row["outcome"] == Outcome.DIVERGED:
                return worst
            if row[name] is None:
                return np.nan
            return question.metric.sign * row[name] if isfinite(row[name]) else worst

        return np.array([[value(run_id) for run_id in row] for row in ids])

    def _used_runs(self, course: questions.Course) -> list[str]:
        """The ids of the runs that the looks so far used."""
        counted = zip(self.question.arms, course.used, strict=True)
        return [arm.runs[s].run_id for arm, n in counted for s in self.question.seeds[:n]]

    def _missing_runs(self, course: questions.Course) -> list[RunSpec]:
        """The runs without a result that the next look needs, seed by seed."""
        missing = np.isnan(self._values()) & course.needs[:, None]
        missing[:, course.upto :] = False
        seeds, arms = self.question.seeds, self.question.arms
        ids = [arms[arm].runs[seeds[seed]].run_id for seed, arm in np.argwhere(missing.T).tolist()]
        specs = {spec.run_id: spec for spec in self.planned.specs}
        return [specs[run_id] for run_id in dict.fromkeys(ids)]

    def _why_over_budget(self, missing: Sequence[RunSpec]) -> str:
        """Why the budget ends the question; empty if it covers the next look."""
        config = self.planned.specs[0].config
        if (allowed := config.budget) is None:
            return ""
        left = allowed - spent_hours(self.planned.specs, self.ledger)
        hours = left_hours(missing, self.ledger, find_device(runs=1))
        cost = sum(known or 0.0 for known in hours.values())
        if cost <= left:
            return ""
        return (
            f"Stopped at budget={config.budget}: the next look costs {cost:.3g} device-hours, "
            f"{max(0.0, left):.3g} are left."
        )

    def _why_ended(self, rule: questions.Rule, course: questions.Course) -> str:
        """Why no more seeds are trained."""
        if course.is_hopeless and questions.has_no_spread(rule):
            return "Stopped: differences that are the same at every seed cannot be tested."
        if course.is_hopeless:
            chance = f"a probability below {self.options['give_up']:g}"
            return f"Stopped: the remaining seeds would decide it with {chance}."
        if rule.is_answered:
            return f"Decided after {several(course.seeds, 'seed')}."
        return "Not decided after all seeds."
