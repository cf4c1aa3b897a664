"""A tuned sweep: a study for each compared point, with equal budgets."""

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import optuna
from optuna.trial import TrialState

from sweeper.commands.overrides import expand
from sweeper.commands.refusals import check_no_question
from sweeper.commands.sweep import Launch, guard, handle_events
from sweeper.commands.tuning_overrides import sort_overrides
from sweeper.commands.user_facts import add_facts
from sweeper.console.live import LiveTable, live_table
from sweeper.planning.code_changes import changed_files, code_changes
from sweeper.planning.plan import Event, plan
from sweeper.spec.identity import scientific_part, targets
from sweeper.spec.outcomes import DONE, RUN_FAILED, Outcome
from sweeper.spec.run_spec import RunSpec, read_run_spec
from sweeper.spec.sentences import read_model, several
from sweeper.spec.values import Count, Settings
from sweeper.store.ledger import Ledger
from sweeper.store.publish import parse_as
from sweeper.store.recovery import finish_abandoned
from sweeper.tuning.point_study import PointStudy
from sweeper.tuning.space import Space, ends_override
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import StudySettings, parse_objective
from sweeper.tuning.tuner import ConfigsOf, Tuner
from sweeper.upstream.hydras import ConfigLoader


class _Limits(Settings, extra="ignore"):
    """What bounds the work of a command: options of its own and of hydra.sweeper."""

    n_trials: Count
    max_concurrent: Count
    max_attempts: Count


def run_tuning(
    overrides: Sequence[str], loader: ConfigLoader, options: Mapping[str, Any], launch: Launch
) -> int:
    """Tune at every compared point; return 0 if every trial has a result, 1 if any has none.

    The options are those of `hydra.sweeper`. ValueError for bad input, before anything starts.
    """
    found = sort_overrides(overrides, loader)
    with _naming_the_ends():
        first = next(expand(loader, [*found.fixed, *next(found.points_with_ends())]))
    options = {**first, **options}
    check_no_question(options["question"])
    read_model(_Limits, options)
    ledger = Ledger.from_setting(options["results"])
    settings = StudySettings(
        space=found.space,
        objective=parse_objective(options["objective"], options["metric"], options["metric_mode"]),
        **{name: options[name] for name in ("sampler", "sampler_seed", "pruner")},
    )

    def find_configs(chosen: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        return add_facts(expand(loader, [*found.fixed, *chosen]), ledger.results)

    configs = (config for words in found.points_with_ends() for config in find_configs(words))
    with _naming_the_ends():
        warnings = plan(configs, ledger).distinct_warnings
    compared = found.points[0] if len(found.points) > 1 else ()
    keys = [*found.space, *(word.lstrip("+").partition("=")[0] for word in compared)]
    ledger.prepare()
    storage = open_storage(ledger.results)
    known = optuna.get_all_study_names(storage)
    studies: list[PointStudy] = []
    for point in found.points:
        name = _name_study(point, found.space, options["study_name"], find_configs, known)
        studies.append(PointStudy(name, point, settings, storage))
    _check_code(studies, ledger, options["code"])
    with live_table([], ledger, keys) as table:
        for warning in warnings:
            table.say(f"Warning: {warning}")
        for spec, outcome in _ended_runs(studies, ledger):
            table.add(spec, outcome)
        tuner = Tuner(
            studies=studies,
            **{name: options[name] for name in ("n_trials", "max_concurrent", "max_attempts")},
            code=options["code"],
            configs_of=find_configs,
            ledger=ledger,
            expect=table.add,
            say=table.say,
        )
        return guard(lambda: _run_trials(tuner, launch, table, options["retry"]), table, ledger)


@contextmanager
def _naming_the_ends() -> Generator[None]:
    """Say of a refusal which points it is about: those that were not typed."""
    try:
        yield
    except ValueError as error:
        msg = f"both ends of every tuned range must give a valid run. {error}"
        raise ValueError(msg) from error


def _name_study(
    point: Sequence[str],
    space: Space,
    study_name: str | None,
    configs_of: ConfigsOf,
    known: Sequence[str],
) -> str:
    """A study's name: its point, and a hash of the scientific keys that are not tuned.

    A point keeps its study, whichever other points it is compared with, and however it is spelled.
    """
    corners = [ends_override(key, chosen).partition(",")[0] for key, chosen in space.items()]
    config = scientific_part(next(configs_of([*point, *corners])))
    for key in space:
        *groups, last = key.split(".")
        node = config
        for group in groups:
            node[group] = node = dict(node.get(group, {}))
        node.pop(last, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    name = " ".join(part for part in (study_name, *point, digest) if part)

    def unspelled_parts(name: str) -> list[str]:
        return [part for part in name.split(" ") if "=" not in part]

    same = [other for other in known if unspelled_parts(other) == unspelled_parts(name)]
    return name if name in known or not same else same[0]


def _check_code(studies: Sequence[PointStudy], ledger: Ledger, code: str | None) -> None:
    """Make the user decide about trials that were run with other sources; a study keeps them all.

    ValueError if there are any, unless `code` is keep.
    """
    finish_abandoned(ledger)
    study_names = {run_id: study.name for study in studies for run_id in study.run_ids}
    rows = ledger.rows(study_names, ["config_json"]) if study_names else {}
    configs = {id: parse_as(dict[str, Any], row["config_json"]) for id, row in rows.items()}
    named = {id: tuple(targets(config)) for id, config in configs.items()}
    changes = code_changes(named, ledger.ended(), ledger)
    if changes and code != "keep":
        first = next(iter(changes))
        msg = (
            "the trials of a study must all run with the same sources of your project; got "
            f"{several(len(changes), 'run')} with other sources, first {first} of "
            f"{study_names[first]}. Changed: {changed_files(changes)}. Give code=keep to continue "
            "with their results, or code=rerun hydra.sweeper.study_name=NAME, with a new name, to "
            "repeat them in new studies."
        )
        raise ValueError(msg)


def _ended_runs(studies: Sequence[PointStudy], ledger: Ledger) -> Iterator[tuple[RunSpec, Outcome]]:
    """The ended runs of the trials so far, except runs of an incompatible version."""
    run_ids = {run_id for study in studies for run_id in study.run_ids}
    rows = ledger.rows(run_ids, ["config_json", "outcome"]) if run_ids else {}
    for row in rows.values():
        config = parse_as(dict[str, Any], row["config_json"]) or {}
        with suppress(ValueError):
            yield read_run_spec(config), Outcome(row["outcome"])


def _run_trials(tuner: Tuner, launch: Launch, table: LiveTable, retry: str | None) -> int:
    def handle(event: Event) -> None:
        table.update(event)
        if not event.is_stopping:  # a stopped trial will resume; it has not failed
            tuner.handle(event)

    if retry == "failed":
        repeated = sum(study.retry_failed() for study in tuner.studies)
        table.say(f"{several(repeated, 'failed trial')} to be retried.")
    budget = several(tuner.n_trials, "trial")
    each = " each" * (len(tuner.studies) > 1)
    table.say(f"{several(len(tuner.studies), 'study')} of {budget}{each}.")
    for study in tuner.studies:
        if begun := study.num_begun:
            table.say(f"{study.name} resumes: {begun} of {budget} started before.")
    handle_events(launch(tuner.claim_tasks(), tuner.ledger), handle)
    for study in tuner.studies:
        table.say(study.summary())
    lacks_result = any(
        study.failed_trials() or study.trials(TrialState.RUNNING) for study in tuner.studies
    )
    return RUN_FAILED if lacks_result else DONE
