"""A sweep: check every point, skip runs that have a result, make the others, show the outcomes."""

import contextlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import pairwise
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from sweeper import CONFIG_FOLDER
from sweeper.commands.grid_words import split_grid_words
from sweeper.commands.overrides import (
    CONFIG_NAME,
    add_own_classes,
    expand,
    merge_preset,
    parse,
    preset_overrides,
    spell_for_hydra,
)
from sweeper.commands.refusals import (
    NOT_COMPOSED,
    check_config_dir,
    check_dashes,
    check_no_question,
    check_primary,
    refuse,
)
from sweeper.commands.show_plan import open_configs
from sweeper.commands.user_conf import task_words, use_folder
from sweeper.commands.user_facts import add_facts
from sweeper.console.live import LiveTable, live_table
from sweeper.console.planned_runs import describe_rule
from sweeper.console.printing import describe_os_error, note
from sweeper.launch.fork_server import TRAINER_PREFIX
from sweeper.launch.local.slots import find_device
from sweeper.planning.budget import Account, open_account
from sweeper.planning.code_changes import describe_changes
from sweeper.planning.plan import (
    Event,
    LazyTasks,
    Plan,
    Task,
    Tasks,
    claim_tasks,
    order_by_information,
    plan,
)
from sweeper.planning.seconds import Speeds
from sweeper.spec.outcomes import DONE, INTERRUPTED, RUN_FAILED
from sweeper.spec.sentences import several
from sweeper.store.damaged import set_aside_damaged
from sweeper.store.ledger import Ledger
from sweeper.store.pending_runs import list_pending
from sweeper.upstream.hydras import VERSION_BASE, config_loader, put_first
from sweeper.upstream.instantiation import instantiate

Launch = Callable[[Tasks, Ledger], Generator[Event]]

#: A sweep merges the small files of settled runs as soon as there are this many.
_COMPACT_FROM = 500


def run_command_line() -> None:
    """Pass the command line to Hydra; under torchrun rank 0 does so, and the others follow it."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors come to us, not to the screen
    flags, overrides = _split_flags(sys.argv[1:])
    if {"--cfg", "-c"} & {flag.partition("=")[0] for flag in flags}:  # without the grid
        flags = [flag for flag in flags if flag not in {"-m", "--multirun"}]
        _, overrides = split_grid_words(overrides)
    if folder := next(filter(os.path.isdir, _config_folders(flags)), None):
        overrides = use_folder(folder, overrides)
    sys.argv[1:] = [*flags, *add_own_classes(overrides)]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return _run_hydra()
    from sweeper.launch.torchrun.launcher import lead_or_follow, torchrun_group

    try:
        torchrun_group()
    except ValueError as error:
        sys.exit(refuse(error))
    return lead_or_follow(_run_hydra)


def _split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags with their values, and the overrides: Hydra takes none after a flag among them."""
    alone = {"-m", "--multirun", "-r", "--run", "--resolve"}
    flags, others, last = list[str](), list[str](), ""
    for word in words:
        is_value = last.startswith("-") and "=" not in last and last not in alone
        (flags if word.startswith("-") or is_value else others).append(word)
        last = word
    return flags, others


def _config_folders(flags: Sequence[str]) -> Iterator[str]:
    for word, after in pairwise([*flags, ""]):
        flag, equals, folder = word.partition("=")
        if flag in {"--config-dir", "-cd"}:
            yield folder if equals else after


def _run_hydra() -> None:
    try:
        flags, overrides = _split_flags(sys.argv[1:])
        config_dir = next(_config_folders(flags), None)
        if config_dir is not None:
            check_config_dir(config_dir)
        dashed = [word for word in flags if word.startswith("-")]
        check_primary(dashed)
        check_dashes(dashed)
        ours, _ = split_grid_words(overrides)
        if ours and {"-m", "--multirun"}.isdisjoint(dashed):
            msg = f"{' '.join(ours)} must be given to a grid; got a single run. Write sweeper run."
            raise ValueError(msg)
        if {word.partition("=")[0] for word in dashed} <= {*_OF_RUNS}:
            sys.argv[1:] = [*flags, *_check_words(overrides, config_dir)]
        put_first(config_dir)
        _run_point()
    except (*NOT_COMPOSED, OSError) as error:
        sys.exit(_refuse(error))


#: Flags of commands that start runs.
_OF_RUNS = ("-m", "--multirun", "-r", "--run", "--config-dir", "-cd")


def _check_words(overrides: Sequence[str], config_dir: str | None) -> Sequence[str]:
    """Refuse what a plan refuses, in the same sentences, before Hydra composes for itself.

    Returns:
        The words as Hydra takes them, with the choices that it needs for classes of the user's.

    Raises:
        ValueError: for words that cannot be composed; what is searched is left to the tuner.
    """
    typed = overrides
    if any(
        word.startswith("hydra/sweeper=") and word != "hydra/sweeper=grid" for word in overrides
    ):
        _, overrides = split_grid_words(overrides)
        kinds = zip(parse(overrides), overrides, strict=True)
        overrides = [
            word
            for override, word in kinds
            if not override.is_sweep_override() or override.is_hydra_override()
        ]
    with open_configs(config_dir) as loader:
        words = merge_preset(preset_overrides(loader, overrides), overrides)
        next(expand(loader, words), None)
        return spell_for_hydra(loader, words, typed)


def _refuse(error: Exception) -> int:
    if isinstance(error, OSError) and not isinstance(error, NOT_COMPOSED):
        return refuse(ValueError(describe_os_error(error)), "The command ended early.")
    return refuse(error)  # some of Hydra's errors are OSErrors too


@hydra.main(**VERSION_BASE, config_path=str(CONFIG_FOLDER), config_name=CONFIG_NAME)
def _run_point(_: DictConfig) -> None:
    """Run a single point: a command without `-m`, or a job of one of Hydra's own launchers."""
    if multiprocessing.get_start_method(allow_none=True) == "loky":  # joblib's; workers lack it
        multiprocessing.set_start_method("forkserver", force=True)
    is_job = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        (config,) = expand(config_loader(), task_words(HydraConfig.get()))
        code = run_sweep([config], _launcher())
    except (ValueError, OSError) as error:
        if is_job:
            raise
        sys.exit(_refuse(error))  # here, because Hydra would print more
    if not is_job:
        sys.exit(code)
    if code:  # exiting would stop the jobs after it
        msg = f"the run has no result, see {config['results']}"
        raise RuntimeError(msg)


def _launcher() -> Launch:
    """The selected launcher; a job of Hydra's own launchers executes its run itself."""
    settings = HydraConfig.get().launcher
    if not settings["_target_"].startswith("hydra."):  # Hydra refuses to instantiate its own
        launcher = instantiate(settings)
        if hasattr(launcher, "launch_runs"):
            launcher.check()
            return launcher.launch_runs
    from sweeper.launch.local.launcher import run_here
    from sweeper.launch.local.slots import inspect_machine

    machine = inspect_machine(jobs=1, runs_per_gpu=1)
    return lambda tasks, ledger: run_here(tasks, ledger, machine)


def run_sweep(configs: Iterable[Mapping[str, Any]], launch: Launch) -> int:
    """Run a grid; return 0 if every run has a result, 1 if any has none.

    ValueError, before anything starts, if a point is impossible, a run was trained with other
    sources, or the budget does not cover the runs still to do.
    """
    first, *others = configs
    check_no_question(first.get("question"))
    ledger = Ledger.from_setting(first.get("results"))
    configs = add_facts([first, *others], ledger.results)
    planned = plan(configs, ledger, with_parents=True)
    command = planned.specs[0].config  # its settings are the same in every point
    device = find_device(runs=1)
    account = open_account(planned, ledger, device)
    set_aside_and_report(ledger)
    ledger.prepare()
    what = {"retry": command.retry, "rerun": command.rerun, "code": command.code}
    if tasks := claim_tasks(planned, ledger, **what):
        tasks = _add_predictions(tasks, Speeds(ledger, device))
    if command.order == "information" and len(tasks) > 1:
        tasks = order_by_information(tasks)
    with live_table(planned.specs, ledger) as table:
        _introduce(planned, tasks, table, command.code)
        offered = LazyTasks(tasks, filter(account.fits, tasks) if account else tasks)
        return guard(lambda: _follow(offered, launch, ledger, table, account), table, ledger)


def set_aside_and_report(ledger: Ledger) -> None:
    """Set damaged files aside and say so at once: the command may still be refused.

    ValueError as for `set_aside_damaged`.
    """
    for text in set_aside_damaged(ledger):
        note(f"Warning: {text} Its runs are trained again.")


def _add_predictions(tasks: Iterable[Task], speeds: Speeds) -> list[Task]:
    """The tasks with their runs' predicted times, where known, which rows will record."""
    if speeds.is_empty:
        return [*tasks]
    found: list[Task] = []
    for task in tasks:
        seconds = speeds.predict(task.spec)
        spec = task.spec.with_facts(predicted=seconds.predicted) if seconds else task.spec
        found.append(replace(task, spec=spec))
    return found


def guard(follow: Callable[[], int], table: LiveTable, ledger: Ledger) -> int:
    """Follow runs to the end, or say why it ended early; return the exit code."""
    try:
        return follow()
    except KeyboardInterrupt:
        table.say("Stopped. Results so far are kept; repeat the command to resume.")
        return INTERRUPTED
    except OSError as error:
        remedy = "Existing results are kept; once that is done, repeat the command."
        if not (ledger.results / "runs").is_dir():
            remedy = (
                f"{ledger.results} was moved or removed while the sweep ran: put it back, and "
                "repeat the command; without it all runs are trained again."
            )
        table.say(f"The command ended early: {describe_os_error(error)} {remedy}")
        return RUN_FAILED


def handle_events(events: Generator[Event], handle: Callable[[Event], None]) -> None:
    """Handle all events of a launcher.

    Ctrl-C during the handling is passed on to the launcher, as if it had been waiting for its runs.
    """
    with closing(events):
        step = partial(next, events)
        while True:
            try:
                handle(step())
                step = partial(next, events)
            except StopIteration:
                return
            except KeyboardInterrupt as pressed:
                if getgeneratorstate(events) == GEN_CLOSED:
                    raise
                step = partial(events.throw, pressed)


def _follow(
    offered: LazyTasks,
    launch: Launch,
    ledger: Ledger,
    table: LiveTable,
    account: Account | None,
) -> int:
    small_files, is_detached = ledger.num_small_files(), False
    tasks = offered.known

    def handle(event: Event) -> None:
        nonlocal small_files, is_detached
        table.update(event)
        if account:
            account.handle(event)
        is_detached |= event.is_detached
        small_files += sum(end.outcome.is_result for end in event.ended.values())
        if small_files >= _COMPACT_FROM:
            from sweeper.store.compaction import compact  # pyarrow: 0.2 s

            compact(ledger.results)
            small_files = 0

    attempts = [(task.spec, task.number) for task in tasks]
    with list_pending(attempts, ledger.results):
        if tasks:
            handle_events(launch(offered, ledger), handle)
    if account and (left_out := account.describe_left_out(tasks[0].spec.config.budget)):
        table.say(left_out)
    for warning in warn_of_other_rates(ledger, [task.spec.run_id for task in tasks]):
        table.say(f"Warning: {warning}")
    is_done = is_detached or table.all_have_results
    return DONE if is_done else RUN_FAILED


def warn_of_other_rates(ledger: Ledger, run_ids: Sequence[str]) -> Iterator[str]:
    """A sentence for each run that was trained again and had other learning rates before."""
    archive = Ledger(ledger.results / "superseded")
    if not (archive.results / "runs").is_dir():
        return
    names = ("outcome", "lr_rule", "lr_series_hash", "micro_batch", "world_size")
    with contextlib.suppress(OSError, ValueError):  # a file of the archive that cannot be read
        now, before = ledger.rows(run_ids, names), archive.rows(run_ids, names)
        for run_id in now.keys() & before.keys():
            rows = now[run_id], before[run_id]
            is_told = all(r["outcome"] == "finished" and r["lr_rule"] != "adascale" for r in rows)
            if is_told and rows[0]["lr_series_hash"] != rows[1]["lr_series_hash"]:
                here, there = (f"{r['world_size']} x {r['micro_batch']}" for r in rows)
                yield (
                    f"run {run_id} had other learning rates before ({there} examples, now {here}): "
                    "unless its sources changed, they follow the layout."
                )


def _introduce(planned: Plan, tasks: Sequence[Task], table: LiveTable, code: str | None) -> None:
    """Say by which rule the sweep trains, and what it warns of, skips, retries and trains."""
    for line in filter(
        None, (describe_rule(planned.specs), describe_changes(planned.changes, code))
    ):
        table.say(line)
    for warning in planned.distinct_warnings:
        table.say(f"Warning: {warning}")
    if ignored := sorted(name for name in os.environ if name.startswith(TRAINER_PREFIX)):
        names = ", ".join(ignored)
        table.say(f"Warning: runs ignore the environment's {names}. Use trainer.KEY=VALUE.")
    for line in planned.notes:
        table.say(line)
    to_run = {task.spec.run_id for task in tasks}
    if early := len(planned.early & to_run):
        table.say(f"Retrying {several(early, 'run')} that failed before the first step.")
    skipped = [row for row in planned.ended.values() if row.run_id not in to_run]
    if settled := sum(row.outcome.is_result for row in skipped):
        have = "has" if settled == 1 else "have"
        of_all = f"{settled} of {len(planned.specs)} runs already {have}"
        table.say(f"{of_all if len(planned.specs) > 1 else 'The run already has'} a result.")
    if failed := len(skipped) - settled:
        table.say(f"{several(failed, 'failed run')} not retried; use retry=failed to retry.")
    if tasks:
        table.say(f"{several(len(tasks), 'run')} to train.")


def complete_line(line: str, commands: Sequence[str]) -> None:
    """Print the possible completions of the last word of a line."""
    _, *words = line.split(" ")
    last = words[-1] if words else ""
    if len(words) < 2:
        sys.stdout.writelines(f"{name}\n" for name in commands if name.startswith(last))
    if words and words[0] in commands and words[0] not in {"plan", "equivalence"}:
        return  # the shell then completes file names
    if last.startswith("-"):
        return
    _, plain = split_grid_words(words[:-1])
    overrides = [word for word in plain if "=" in word or word.startswith("~")]
    # Hydra knows neither our subcommands nor their flags; without -m it refuses lists of values.
    os.environ["COMP_LINE"] = " ".join(["sweeper", "-m", *overrides, last])
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        run_command_line()
