"""A tuned sweep: a study for each compared point, with equal budgets."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from sweeper.commands.project_facts import add_facts
from sweeper.commands.refusals import check_no_question
from sweeper.commands.sweep import Launch, guard, handle_events
from sweeper.console.live import LiveTable, live_table
from sweeper.planning.code_changes import changed_files, code_changes
from sweeper.planning.plan import Event, plan
from sweeper.spec.identity import scientific_part, targets
from sweeper.spec.outcomes import DONE, RUN_FAILED, Outcome
from sweeper.spec.run_spec import RunSpec, read_run_spec
from sweeper.spec.sentences import several
from sweeper.store.attempt import finish_abandoned
from sweeper.store.ledger import Ledger
from sweeper.tuning.point_study import PointStudy, summarize
from sweeper.tuning.space import Space, ends_override
from sweeper.tuning.storage import cause_of, close_storage, open_storage, storage_errors
from sweeper.tuning.study_settings import StudySettings
from sweeper.tuning.tuner import ConfigsOf, Tuner


def run_tuning(
    points: Sequence[Sequence[str]],
    settings: StudySettings,
    options: Mapping[str, Any],
    configs_of: ConfigsOf,
    launch: Launch,
) -> int:
    """Tune at every point; return 0 if every trial has a result, 1 if any has none.

    Each point is the compared overrides of a study. The options are `results`, `question`, `retry`,
    `code` and `n_trials` of the command; `storage`, `study_name`, `max_concurrent` and
    `max_attempts` of `hydra.sweeper`. ValueError for bad input, before anything starts.
    """
    check_no_question(options.get("question"))
    ledger = Ledger.from_setting(options["results"])
    _check_budget(options, settings)

    def find_configs(overrides: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        return add_facts(configs_of(overrides), ledger.results)

    warnings = _check_space(points, settings.space, find_configs, ledger)
    compared = points[0] if len(points) > 1 else ()
    keys = [*settings.space, *(word.lstrip("+").partition("=")[0] for word in compared)]
    ledger.prepare()
    storage = open_storage(options["storage"], ledger.results)
    try:
        studies = _open_studies(points, settings, options["study_name"], find_configs, storage)
        _check_code(studies, ledger, options["code"])
        with live_table([], ledger, keys) as table:
            for warning in warnings:
                table.say(f"Warning: {warning}")
            for spec, outcome in _ended_runs(studies, ledger):
                table.add(spec, outcome)
            tuner = Tuner(
                studies=studies,
                n_trials=options["n_trials"],
                max_concurrent=options["max_concurrent"],
                max_attempts=options["max_attempts"],
                code=options["code"],
                configs_of=find_configs,
                ledger=ledger,
                expect=table.add,
                say=table.say,
            )
            return guard(
                lambda: _run_guarded(tuner, launch, table, options["retry"]), table, ledger
            )
    finally:
        close_storage(storage)


def _open_studies(
    points: Sequence[Sequence[str]],
    settings: StudySettings,
    study_name: str | None,
    configs_of: ConfigsOf,
    storage: BaseStorage,
) -> list[PointStudy]:
    """The studies of these points, new or resumed."""
    try:
        known = optuna.get_all_study_names(storage)
        names = [_name_study(point, settings, study_name, configs_of, known) for point in points]
        return [
            PointStudy(name, point, settings, storage)
            for name, point in zip(names, points, strict=True)
        ]
    except storage_errors() as error:
        msg = (
            "hydra.sweeper.storage must be a database that accepts new studies; it reports: "
            f"{cause_of(error)}. Repair it, or remove the setting to use a journal file."
        )
        raise ValueError(msg) from error


def _ended_runs(studies: Sequence[PointStudy], ledger: Ledger) -> Iterator[tuple[RunSpec, Outcome]]:
    """The ended runs of the trials so far, except runs of an incompatible version."""
    run_ids = {run_id for study in studies for run_id in study.run_ids}
    rows = ledger.rows(run_ids, ["config_json", "outcome"]) if run_ids else {}
    for row in rows.values():
        with suppress(ValueError):
            yield read_run_spec(json.loads(row["config_json"])), Outcome(row["outcome"])


def _run_guarded(tuner: Tuner, launch: Launch, table: LiveTable, retry: str | None) -> int:
    try:
        return _run(tuner, launch, table, retry)
    except storage_errors() as error:
        table.say(
            f"hydra.sweeper.storage can no longer be reached: {cause_of(error)}. Results so far "
            "are kept; repair the database, and repeat the command to resume."
        )
        return RUN_FAILED


def _run(tuner: Tuner, launch: Launch, table: LiveTable, retry: str | None) -> int:
    if retry == "failed":
        repeated = sum(study.retry_failed() for study in tuner.studies)
        table.say(f"{several(repeated, 'failed trial')} to be retried.")
    each = several(tuner.n_trials, "trial") + " each" * (len(tuner.studies) > 1)
    table.say(f"{several(len(tuner.studies), 'study')} of {each}.")
    for study in tuner.studies:
        if begun := study.num_begun:
            of = f"{begun} of {several(tuner.n_trials, 'trial')}"
            table.say(f"{study.name} resumes: {of} started before.")

    def handle(event: Event) -> None:
        table.update(event)
        if not event.is_stopping:  # a stopped trial will resume; it has not failed
            tuner.handle(event)

    handle_events(launch(tuner.claim_tasks(), tuner.ledger), handle)
    for study in tuner.studies:
        table.say(summarize(study))
    all_have_results = not any(
        study.failed_trials() or study.trials(TrialState.RUNNING) for study in tuner.studies
    )
    return DONE if all_have_results else RUN_FAILED


def _check_budget(options: Mapping[str, Any], settings: StudySettings) -> None:
    for name in ("n_trials", "max_concurrent", "max_attempts"):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"{name} must be a whole number, 1 or more; got {name}={value!r}."
            raise ValueError(msg)
    points = settings.num_grid_points
    if points and options["n_trials"] != points:
        msg = (
            f"n_trials must be {points} with hydra/sweeper/sampler=grid, the number of its "
            f"points; got n_trials={options['n_trials']}. Write n_trials={points}, or tune less."
        )
        raise ValueError(msg)


def _check_space(
    points: Sequence[Sequence[str]], space: Space, configs_of: ConfigsOf, ledger: Ledger
) -> Sequence[str]:
    """Check every corner of the space at every point, before anything starts."""
    corners = [ends_override(key, distribution) for key, distribution in space.items()]
    configs = (config for point in points for config in configs_of([*point, *corners]))
    try:
        return plan(configs, ledger).distinct_warnings
    except ValueError as error:
        msg = f"both ends of every tuned range must give a valid run. {error}"
        raise ValueError(msg) from error


def _check_code(studies: Sequence[PointStudy], ledger: Ledger, code: str | None) -> None:
    """Make the user decide about trials that were run with other sources; a study keeps them all.

    ValueError if there are any, unless `code` is keep.
    """
    finish_abandoned(ledger)
    made = {run_id: study for study in studies for run_id in study.run_ids}
    rows = ledger.rows(made, ["config_json"]) if made else {}
    named = {id: tuple(targets(json.loads(row["config_json"]))) for id, row in rows.items()}
    changes = code_changes(named, ledger.ended(), ledger)
    if changes and code != "keep":
        msg = (
            "the trials of a study must all run with the same sources of your project; got "
            f"{several(len(changes), 'run')} with other sources, first "
            f"{next(iter(changes))} of {made[next(iter(changes))].name}. Changed: "
            f"{changed_files(changes)}. Give code=keep to continue with their results, or "
            "code=rerun hydra.sweeper.study_name=NAME, with a new name, to repeat them in new "
            "studies."
        )
        raise ValueError(msg)


def _name_study(
    point: Sequence[str],
    settings: StudySettings,
    study_name: str | None,
    configs_of: ConfigsOf,
    known: Sequence[str],
) -> str:
    """A study's name: its point, and a hash of the scientific keys that are not tuned.

    A point keeps its study, whichever other points it is compared with.
    """
    corners = [ends_override(key, space).partition(",")[0] for key, space in settings.space.items()]
    config = scientific_part(next(configs_of([*point, *corners])))
    for key in settings.space:
        *groups, last = key.split(".")
        node = config
        for group in groups:
            node[group] = node = dict(node.get(group, {}))
        node.pop(last, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    name = " ".join(part for part in (study_name, *point, digest) if part)
    same = [other for other in known if _unspelled_parts(other) == _unspelled_parts(name)]
    return name if name in known or not same else same[0]


def _unspelled_parts(name: str) -> list[str]:
    """The parts of a name that do not depend on how its point is spelled."""
    return [part for part in name.split(" ") if "=" not in part]
