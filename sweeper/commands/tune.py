"""A tuned sweep: one study for each compared point, with equal budgets."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage

from sweeper.commands.sweep import Launch, guard
from sweeper.console.live_table import LiveTable, live_table
from sweeper.planning.plan import plan
from sweeper.spec import exit_codes
from sweeper.spec.identity import scientific_part
from sweeper.store.ledger import Ledger
from sweeper.tuning.design import Design
from sweeper.tuning.report import outlook
from sweeper.tuning.space import Space, ends
from sweeper.tuning.storage import cause_of, close_storage, open_storage, storage_errors
from sweeper.tuning.study import PointStudy
from sweeper.tuning.tuner import ConfigsOf, Tuner


def run_tuning(
    points: Sequence[Sequence[str]],
    design: Design,
    settings: Mapping[str, Any],
    configs_of: ConfigsOf,
    launch: Launch,
) -> int:
    """Tune at every point.

    Args:
        points: the compared words of each study.
        design: how trials are chosen and judged.
        settings: `results`, `retry`, `n_trials` of the command; `storage`, `study`, `at_once` and
            `tries` of `hydra.sweeper`.
        configs_of: the runs that words stand for.
        launch: makes attempts at some place.

    Returns:
        The exit code: 0 if every trial has a result, 1 if any has none.

    Raises:
        ValueError: if nothing was started, for bad input.
    """
    ledger = Ledger(Path(settings["results"]))
    _check_budget(settings, design)
    warnings = _check_space(points, design.space, configs_of, ledger)
    ledger.prepare()
    storage = open_storage(settings["storage"], ledger.results)
    try:
        studies = _studies(points, design, settings["study"], configs_of, storage)
        with live_table([], ledger) as table:
            for warning in warnings:
                table.say(f"Warning: {warning}")
            tuner = Tuner(
                studies=studies,
                n_trials=settings["n_trials"],
                at_once=settings["at_once"],
                tries=settings["tries"],
                configs_of=configs_of,
                ledger=ledger,
                expect=table.add,
                say=table.say,
            )
            return guard(lambda: _follow(tuner, launch, table, settings["retry"]), table, ledger)
    finally:
        close_storage(storage)


def _studies(
    points: Sequence[Sequence[str]],
    design: Design,
    study: str | None,
    configs_of: ConfigsOf,
    storage: BaseStorage,
) -> list[PointStudy]:
    """The studies of these points, begun or gone on with.

    Raises:
        ValueError: if one cannot be kept, or had another design when it began.
    """
    try:
        known = optuna.get_all_study_names(storage)
        names = [_name(words, design, study, configs_of, known) for words in points]
        return [
            PointStudy(name, words, design, storage)
            for name, words in zip(names, points, strict=True)
        ]
    except storage_errors() as error:
        msg = (
            "hydra.sweeper.storage must be a database that takes new studies; it says: "
            f"{cause_of(error)}. See to it, or leave it out for a journal file."
        )
        raise ValueError(msg) from error


def _follow(tuner: Tuner, launch: Launch, table: LiveTable, retry: str | None) -> int:
    try:
        return _run(tuner, launch, table, retry)
    except storage_errors() as error:
        table.say(
            f"hydra.sweeper.storage could be reached no more: {cause_of(error)}. What was trained "
            "is kept; see to the database, and repeat the command to go on from there."
        )
        return exit_codes.RUN_FAILED


def _run(tuner: Tuner, launch: Launch, table: LiveTable, retry: str | None) -> int:
    if retry == "failed":
        repeated = sum(study.repeat_failed() for study in tuner.studies)
        table.say(f"{repeated} failed trials are tried again.")
    _say_budgets(tuner.studies, tuner.n_trials, table)
    for event in launch(tuner.tasks(), tuner.ledger):
        table.update(event)
        tuner.take_in(event)
    for study in tuner.studies:
        table.say(outlook(study))
    all_have_results = not any(study.failed() for study in tuner.studies)
    return exit_codes.DONE if all_have_results else exit_codes.RUN_FAILED


def _say_budgets(studies: Sequence[PointStudy], n_trials: int, table: LiveTable) -> None:
    table.say(f"{len(studies)} studies of {n_trials} trials each.")
    for study in studies:
        if begun := study.num_begun:
            table.say(f"{study.name} goes on: {begun} of {n_trials} trials were begun before.")


def _check_budget(settings: Mapping[str, Any], design: Design) -> None:
    for name in ("n_trials", "at_once", "tries"):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"{name} must be a whole number, 1 or more; got {name}={value!r}."
            raise ValueError(msg)
    points = design.num_grid_points
    if points and settings["n_trials"] != points:
        msg = (
            f"n_trials must be {points} with hydra/sweeper/sampler=grid, the number of its "
            f"points; got n_trials={settings['n_trials']}. Write n_trials={points}, or tune less."
        )
        raise ValueError(msg)


def _check_space(
    points: Sequence[Sequence[str]], space: Space, configs_of: ConfigsOf, ledger: Ledger
) -> Sequence[str]:
    """Check every corner of the space at every point, before anything starts.

    Returns:
        Warnings.
    """
    corners = [ends(key, distribution) for key, distribution in space.items()]
    configs = (config for words in points for config in configs_of([*words, *corners]))
    try:
        return plan(configs, ledger).distinct_warnings
    except ValueError as error:
        msg = f"every end of the tuned ranges must make a possible run. {error}"
        raise ValueError(msg) from error


def _name(
    words: Sequence[str],
    design: Design,
    study: str | None,
    configs_of: ConfigsOf,
    known: Sequence[str],
) -> str:
    """A study's name: its point, and a hash of all that is scientific and neither tuned nor mean.

    The same point thus finds its study again, also one that was compared with others then.

    Args:
        words: the compared words.
        design: how trials are chosen and judged.
        study: the name that the user gave, if any.
        configs_of: the runs that words stand for.
        known: the studies that are there.
    """
    corners = [f"{ends(key, space).partition(',')[0]}" for key, space in design.space.items()]
    config = scientific_part(next(configs_of([*words, *corners])))
    free = [*design.space, *(word.partition("=")[0].lstrip("+") for word in design.averaged)]
    for key in free:
        _drop(config, key.split("."))
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    name = " ".join(part for part in (study, *words, digest) if part)
    same = [other for other in known if _without_point(other) == _without_point(name)]
    return name if name in known or not same else same[0]


def _without_point(name: str) -> list[str]:
    """The user's name for it and the hash."""
    return [part for part in name.split(" ") if "=" not in part]


def _drop(config: dict[str, Any], path: Sequence[str]) -> None:
    *groups, last = path
    node = config
    for group in groups:
        node[group] = node = dict(node.get(group, {}))
    node.pop(last, None)
