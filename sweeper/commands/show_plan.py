"""`sweeper plan`: list every run of a grid with its numbers; start nothing."""

import argparse
import gc
import json
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from rich.console import Console

from sweeper import CONFIG_FOLDER
from sweeper.commands.costs import Bill
from sweeper.commands.overrides import expand, merge_preset, preset_overrides
from sweeper.commands.refusals import CommandParser, check_config_dir, check_no_question, refuse
from sweeper.commands.user_conf import use_folder
from sweeper.commands.user_facts import add_facts
from sweeper.console.differences import Differences
from sweeper.console.fitted_table import Column, FittedTable
from sweeper.console.planned_runs import (
    DESCRIPTIONS,
    describe_guarantees,
    describe_rule,
    draw_schedules,
)
from sweeper.console.printing import note, say, text_console
from sweeper.console.runs import (
    LAYOUT_COLUMNS,
    describe_common,
    difference_columns,
    duration,
    layout_column,
    token_columns,
)
from sweeper.launch.fork_server import open_fork_server
from sweeper.launch.local.preflight import check_ready, has_data
from sweeper.launch.local.slots import Machine, inspect_machine
from sweeper.launch.memory_trace import LONGEST_S, trace_memory
from sweeper.planning.budget import open_account
from sweeper.planning.code_changes import describe_changes
from sweeper.planning.plan import Plan, plan
from sweeper.planning.seconds import Seconds, Speeds
from sweeper.spec.outcomes import DONE
from sweeper.spec.run_memory import DEVICE
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.damaged import consequence, find_damaged
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.run_columns import planned_columns
from sweeper.upstream.hydras import VERSION_BASE, ConfigLoader, config_loader, put_first

Line = dict[str, Any]
_TUNED = "hydra/sweeper=optuna"


def main(arguments: Sequence[str]) -> int:
    """Print the plan of the overrides on the command line; return the exit code."""
    gc.disable()  # a plan leaves no garbage, and looking for it took a sixth of the time
    try:
        return _print_plan(arguments)
    finally:
        gc.enable()


def _print_plan(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    machine = inspect_machine(jobs="auto", runs_per_gpu=1)
    try:
        configs, ledger = _read_grid(options.overrides, options.config_dir)
        planned = plan(configs, ledger, device=machine.device, with_parents=True)
    except ValueError as error:
        return refuse(error, "This grid cannot run.")
    if options.schedule_plot:
        try:
            draw_schedules(planned.specs, Path(options.schedule_plot))
        except ValueError as error:
            return refuse(error, "Nothing was drawn.")
    memory = MemoryCache(ledger.results, machine.device)
    traces = options.memory is not False and trace_unknown(planned, memory, is_asked=options.memory)
    planned = plan(configs, ledger, device=machine.device, with_parents=True) if traces else planned
    speeds = Speeds(ledger, machine.device)
    unknown = [spec for spec in planned.without_result if not speeds.predict(spec)]
    if options.probe and unknown:
        try:
            _probe(unknown, ledger, machine)
        except ValueError as error:
            return refuse(error, "Nothing was timed.")
        speeds = Speeds(ledger, machine.device)
    seconds = {spec.run_id: speeds.predict(spec) for spec in planned.specs}
    lines = plan_lines(planned, seconds)
    bill = Bill([(spec, seconds[spec.run_id]) for spec in planned.without_result], machine)
    if options.json:
        say(json.dumps({"runs": lines, "results": str(ledger.results), **bill.totals}))
    else:
        show(planned, lines, text_console(), by_class=bool(options.memory))
        say(bill.describe(ledger.results))
    if _TUNED in options.overrides:
        trials = configs[0]["n_trials"]
        note(f"These are both ends of each tuned range; {trials} trials a study lie between them.")
    is_sequential = "hydra/sweeper=sequential" in options.overrides
    _say_refusals(planned, ledger, machine, None if is_sequential else configs[0].get("question"))
    if not any(re.match(r"hydra/launcher=(?!local$)", word) for word in options.overrides):
        _say_missing(planned, machine)
    return DONE


def _probe(specs: Sequence[RunSpec], ledger: Ledger, machine: Machine) -> None:
    """Time runs by training their beginnings; announced first, as it prints nothing meanwhile."""
    from sweeper.launch.local.time_probe import probe_times

    note(f"Training the first steps of a run of each kind ({several(len(specs), 'run')} in all)...")
    for text in probe_times(specs, ledger.results, machine):
        note(text)


def _say_refusals(planned: Plan, ledger: Ledger, machine: Machine, question: str | None) -> None:
    """Name damaged files, and say if a sweep would be refused for its budget or its question."""
    for path in find_damaged(ledger.results):
        note(consequence(path))
    try:
        check_no_question(question)
        open_account(planned, ledger, machine.device)
    except ValueError as error:
        note(f"A sweep would be refused: {error}")


def _say_missing(planned: Plan, machine: Machine) -> None:
    """Say why new runs could not start on this machine; they may be meant for another."""
    new = {s.kind: s.config for s in planned.specs if s.run_id not in planned.ended}.values()
    try:
        check_ready(new, machine)
    except ValueError as error:
        for line in str(error).splitlines():
            note(f"Cannot run on this machine: {line}")


def plan_grid(overrides: Sequence[str], *, config_dir: str | None) -> tuple[Plan, Ledger]:
    """The plan of a command's overrides, and the ledger that it was compared with.

    ValueError if an override cannot be parsed or a point is impossible.
    """
    configs, ledger = _read_grid(overrides, config_dir)
    device = inspect_machine(jobs="auto", runs_per_gpu=1).device
    return plan(configs, ledger, device=device), ledger


def _read_grid(overrides: Sequence[str], config_dir: str | None) -> tuple[list[Line], Ledger]:
    """The configs of a command's overrides, with facts about modules and data, and the ledger."""
    configs = list(configs_of(overrides, config_dir=config_dir))
    ledger = Ledger.from_setting(configs[0].get("results") if configs else "results")
    return list(add_facts(configs, ledger.results)), ledger


def configs_of(overrides: Sequence[str], *, config_dir: str | None) -> Generator[Line]:
    """The resolved configs of the grid that a command's overrides specify.

    Of a range that is tuned they have both ends.
    """
    if config_dir is not None:
        check_config_dir(config_dir)
        overrides = use_folder(config_dir, overrides)
    with open_configs(config_dir) as loader:
        words = merge_preset(preset_overrides(loader, overrides), overrides)
        if _TUNED not in words:
            yield from expand(loader, words)
            return
        from sweeper.commands.tuning_overrides import sort_overrides  # imports Optuna

        found = sort_overrides(words, loader)
        for point in found.points_with_ends():
            yield from expand(loader, [*found.fixed, *point])


@contextmanager
def open_configs(config_dir: str | None) -> Generator[ConfigLoader]:
    """The loader of our configs, and of those of a user's folder before them."""
    put_first(config_dir)
    with initialize_config_dir(**VERSION_BASE, config_dir=str(CONFIG_FOLDER)):
        yield config_loader()


def plan_lines(planned: Plan, seconds: Mapping[str, Seconds | None]) -> list[Line]:
    """One mapping per run: batch split, rates, steps, predicted time and memory, status, warnings.

    Args:
        planned: the runs.
        seconds: their predicted times by run id; None if not known.
    """
    by_kind = {
        spec.kind: _kind_line(spec, planned, seconds.get(spec.run_id))
        for spec in {spec.kind: spec for spec in planned.specs}.values()
    }
    return [{**by_kind[spec.kind], **_own_line(spec, planned)} for spec in planned.specs]


def _kind_line(spec: RunSpec, planned: Plan, seconds: Seconds | None) -> Line:
    plan = spec.batch_plan
    return {
        **planned_columns(spec),
        **(seconds.predicted.columns if seconds else {}),
        "predicted_parts_s": asdict(seconds) if seconds else None,
        "micro_batch_from": planned.fits[spec.run_id].source,
        "predicted_memory_classes_gib": dict(planned.fits[spec.run_id].classes) or None,
        "batches": [
            {
                "first_epoch": epoch,
                "first_step": step,
                "global_batch": (batch := plan.split_at(epoch, step).global_batch),
                "steps_per_epoch": plan.num_train_examples // batch,
            }
            for epoch, step in plan.starts
        ],
        "lr_factor": spec.schedule.peak_lr if spec.config.keeps_own_optimizer else None,
        "metric_name": spec.config.metric,
        "metric_mode": spec.config.metric_mode,
        "most_epochs": spec.most_epochs,
        "total_steps": spec.total_steps,
        "warmup_steps": spec.schedule.warmup_steps,
        "total_examples": plan.examples_before(spec.epochs),
        "steps_to_train": round(spec.share_to_train * spec.total_steps),
    }


def _own_line(spec: RunSpec, planned: Plan) -> Line:
    ended, changed = planned.ended.get(spec.run_id), planned.changes.get(spec.run_id)
    return {
        "run_id": spec.run_id,
        "seed": spec.config.seed,
        "ledger": str(ended.outcome) if ended else "new",
        "changed_code": list(changed.files) if changed else [],
        "warnings": list(planned.warnings[spec.run_id]),
    }


def show(planned: Plan, lines: Sequence[Line], console: Console, *, by_class: bool = False) -> None:
    """Print a plan as a table, with its warnings, and memory in all or by class."""
    words = [spec.words for spec in planned.specs]
    differences = Differences(words)
    layouts = [
        "x".join(str(line[name]) for name in LAYOUT_COLUMNS)
        + "?" * (line["micro_batch_from"] == "to be traced")
        for line in lines
    ]
    columns = [*difference_columns(words, differences), *layout_column(layouts), *_columns(lines)]
    if rule := describe_rule(planned.specs):
        console.print(rule)
    console.print(describe_common(differences, set(layouts)), soft_wrap=False)
    console.print(FittedTable(columns), soft_wrap=False)
    if any(layout.endswith("?") for layout in layouts):
        console.print(
            "Layouts with ? are upper bounds until memory is traced (`sweeper plan --memory`)."
        )
    kinds = list({spec.kind: spec for spec in planned.specs}.values())
    sentences = [
        *(describe_memory(spec, planned.fits[spec.run_id], by_class=by_class) for spec in kinds),
        *(describe(spec) for describe in DESCRIPTIONS for spec in kinds),
        *planned.notes,
        *(f"Warning: {warning}" for warning in planned.distinct_warnings),
        *map(describe_guarantees, kinds),
        describe_changes(planned.changes, planned.specs[0].config.code),
    ]
    for sentence in filter(None, dict.fromkeys(sentences)):
        console.print(sentence)
    new = sum(line["ledger"] == "new" for line in lines)
    are_new = f"{new:,} of them new" if lines[1:] else "new" if new else "not new"
    console.print(f"{several(len(lines), 'run')}, {are_new}. Nothing was started.")


def _columns(lines: Sequence[Line]) -> list[Column]:
    """Columns for rates (or factors on the module's own), steps, time, and status in the ledger."""
    warmups = [f"{line['warmup_steps']:g}" for line in lines]
    peaks = [
        f"{line['peak_lr']:g}" if line["peak_lr"] else f"x {line['lr_factor']:g}" for line in lines
    ]
    times = [duration(line["predicted_s"]) if line["predicted_s"] else "" for line in lines]
    sizes = [(line["tokens_per_example"] or 0, line) for line in lines]
    tokens = [(n * line["global_batch"], n * line["total_examples"]) for n, line in sizes]
    left = [f"{line['steps_to_train']:,}" for line in lines]
    are_trunks = any(line["trunk"] for line in lines)
    return [
        *token_columns(tokens),
        Column(head="peak lr", cells=peaks),
        Column(head="steps/epoch", cells=[f"{line['steps_per_epoch']:,}" for line in lines]),
        Column(head="steps", cells=[f"{line['total_steps']:,}" for line in lines], spared=4),
        *([Column(head="to train", cells=left)] * are_trunks),
        Column(head="warmup steps", cells=warmups, spared=3),
        Column(head="time", cells=times, spared=1),
        Column(head="ledger", cells=[line["ledger"] for line in lines]),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = overrides_parser("plan", __doc__)
    parser.add_argument("-m", "--multirun", action="store_true", help="accepted and ignored")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--probe",
        action="store_true",
        help="train the first steps of runs whose time is not known, to predict it",
    )
    parser.add_argument(
        "--memory",
        action=argparse.BooleanOptionalAction,
        help="trace the memory of every kind of run, training nothing, and print it by class; by "
        "default only of those without a result on a GPU or with a limit, for half a minute",
    )
    parser.add_argument(
        "--schedule-plot", help="plot the learning rates to this file, such as lr.png"
    )
    return parser


def overrides_parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a subcommand that takes the overrides of a sweep."""
    parser = CommandParser(prog=f"sweeper {command}", description=about)
    parser.add_argument("overrides", nargs="*", help="the same as after `sweeper -m`")
    parser.add_argument("--config-dir", help="a folder with your own configs, as for a sweep")
    return parser


#: Unless asked for, no trace starts after the first time, and each is given up after the second.
_UNASKED_S, _UNASKED_TRACE_S = 30.0, 60.0


def trace_unknown(planned: Plan, memory: MemoryCache, *, is_asked: bool | None) -> bool:
    """Trace a run of each kind whose memory is not known; return whether there were any.

    Args:
        planned: the runs; those with a result, without local data, or on a CPU without a limit are
            included only if asked for.
        memory: the cache of known traces.
        is_asked: whether to trace all of them, also those whose trace failed before.
    """
    specs = planned.specs if is_asked else planned.without_result
    lacking = [spec for spec in specs if not planned.fits[spec.run_id].classes]
    unknown = list({memory.key(spec): spec for spec in lacking}.values())
    if not is_asked:
        unknown = [
            s
            for s in unknown
            if (memory.allowed_gib(s) is not None or s.config.accelerator == "gpu")
            and not memory.is_traced(s)
            and has_data(s.config.data.group)
        ]
    if not unknown:
        return False
    without = "" if is_asked else " (--no-memory skips this)"
    note(f"Tracing the memory of {several(len(unknown), 'kind')} of run{without}...")
    open_fork_server()
    began = time.monotonic()
    for number, spec in enumerate(unknown):
        if not is_asked and time.monotonic() - began > _UNASKED_S:
            left = several(len(unknown) - number, "kind")
            note(f"Not traced within half a minute: {left} of run. --memory traces them all.")
            break
        longest_s = LONGEST_S if is_asked else _UNASKED_TRACE_S
        if why_not := trace_memory(spec, memory, longest_s=longest_s):
            note(why_not)
    return True


def describe_memory(spec: RunSpec, fit: Fit, *, by_class: bool) -> str:
    """A run's predicted memory, as a sentence; empty if it is not known."""
    if not fit.classes:
        return ""
    named = fit.classes.items() if by_class else ()
    parts = [f"{name.replace('_', ' ')} {_gib_text(gib)}" for name, gib in named if gib]
    if not fit.classes[DEVICE]:
        parts.append("device not known")
    details = f" ({', '.join(parts)})" if parts else ""
    return (
        f"Memory of {planned_columns(spec)['model']}, {spec.config.optimizer.name}, "
        f"{spec.config.precision}, micro-batch {spec.split.micro_batch}: "
        f"{_gib_text(sum(fit.classes.values()))}{details}."
    )


def _gib_text(gib: float) -> str:
    for unit, in_gib in (("GiB", 1), ("MiB", 2**-10)):
        if gib >= 0.1 * in_gib:
            return f"{gib / in_gib:.3g} {unit}"
    return f"{gib * 2**20:.3g} KiB"
