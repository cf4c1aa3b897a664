"""A sequential sweep: a question, the runs that answer it, and what is remembered of it."""

from collections.abc import Iterable, Mapping
from typing import Any

from analysis.stats.anytime import Looks
from analysis.tables.metric import metric_named
from sweeper.commands.project_facts import add_facts
from sweeper.commands.sequential.answer import ended, remember, remembered, verdict
from sweeper.commands.sequential.cost import check_known
from sweeper.commands.sequential.question import LEAST_SEEDS, Asked, ask
from sweeper.commands.sequential.rounds import Study
from sweeper.commands.sweep import Launch, guard, set_aside_and_report
from sweeper.console.live import live_table
from sweeper.planning.code_changes import check_code, of_code
from sweeper.planning.plan import plan
from sweeper.planning.same_training import of_same
from sweeper.store.ledger import Ledger


def run_sequential(
    configs: Iterable[Mapping[str, Any]], options: Mapping[str, Any], launch: Launch
) -> int:
    """Answer a question about a grid; return 0 if nothing is left to do, 1 if a run has no result.

    The options are `question`, `metric`, `metric_mode`, `results`, `retry`, `rerun` and `code` of
    the command, `first_look`, `seeds_per_look` and `give_up` of `hydra.sweeper`. ValueError for bad
    input, before anything starts.
    """
    ledger = Ledger.at(options["results"])
    _check(options)
    set_aside_and_report(ledger)
    planned = plan(add_facts(configs, ledger.results), ledger)
    check_code(planned.changes, options["code"], num_runs=len(planned.specs))
    metric = metric_named(options["metric"], options["metric_mode"])
    asked = ask(options["question"], planned.points, metric)
    looks = Looks.every(
        options["seeds_per_look"], first=options["first_look"], last=len(asked.seeds)
    )
    trained = {pair.point.run_id: pair.trained.run_id for pair in planned.same}
    _check_apart(asked, trained)
    memory = remembered(asked, looks, ledger.results)
    study = Study(asked, looks, planned, trained, ledger, options)
    check_known(study.wanted(study.course()[1]), ledger)
    ledger.prepare()
    with live_table([], ledger, [arm.name.partition("=")[0] for arm in asked.arms][:1]) as table:
        if said := of_code(planned.changes, options["code"]):
            table.say(said)
        for line in (*planned.distinct_warnings, *planned.of_repeats, *of_same(planned.same)):
            table.say(line)
        study.introduce(table)
        remember(memory, asked, looks, answer=None)

        def answered() -> int:
            code = study.run(launch, table)
            rule, course = study.course()
            runs = study.used(course)
            said = ended(asked, rule, course, study.why, runs)
            remember(memory, asked, looks, answer=verdict(asked, rule), why=study.why, runs=runs)
            table.say(said)
            return code

        return guard(answered, table, ledger)


def _check(options: Mapping[str, Any]) -> None:
    if not options["question"]:
        msg = (
            "question must be given with hydra/sweeper=sequential; got none. Write "
            "'question=\"best warmup at batch=3840\"'; docs/sequential.md has the others."
        )
        raise ValueError(msg)
    for name, least in (("first_look", LEAST_SEEDS), ("seeds_per_look", 1)):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            msg = (
                f"hydra.sweeper.{name} must be a whole number, {least} or more; got "
                f"{name}={value!r}."
            )
            raise ValueError(msg)
    chance = options["give_up"]
    if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance < 1:
        msg = f"hydra.sweeper.give_up must be a probability, 0 to below 1; got give_up={chance!r}."
        raise ValueError(msg)
    if options["rerun"]:
        msg = (
            "rerun must be null with hydra/sweeper=sequential, whose answer would change with it; "
            f"got rerun={options['rerun']}. Use another results folder."
        )
        raise ValueError(msg)


def _check_apart(asked: Asked, trained: Mapping[str, str]) -> None:
    """ValueError if two arms are the same training, so that there is nothing to compare."""
    owners: dict[str, str] = {}
    for arm in asked.arms:
        for run in arm.runs.values():
            other = owners.setdefault(trained.get(run.run_id, run.run_id), arm.name)
            if other != arm.name:
                msg = (
                    f"the points that a question compares must train differently; {other} and "
                    f"{arm.name} have the same learning rate at each step. Leave one out."
                )
                raise ValueError(msg)
