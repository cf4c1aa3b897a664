"""`sweeper plan`: list every run of a grid with its numbers; start nothing."""

import argparse
import gc
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from rich.console import Console

from sweeper import CONFIG_FOLDER
from sweeper.commands.costs import account_of, bill
from sweeper.commands.memory_report import describe_memory, trace_unknown
from sweeper.commands.overrides import expand, preset_overrides, with_preset
from sweeper.commands.project_facts import add_facts
from sweeper.commands.refusals import CommandParser, check_config_dir, check_no_question, refuse
from sweeper.console.differences import Differences
from sweeper.console.fitted_table import Column, FittedTable
from sweeper.console.planned_runs import compared, course, draw_schedules, guarantees, rates
from sweeper.console.printing import note, say, text_console
from sweeper.console.runs import columns_of, common, duration, layout_column
from sweeper.launch.local.readiness import check_ready
from sweeper.launch.local.slots import Machine, inspect_machine
from sweeper.planning.code_changes import describe_changes
from sweeper.planning.plan import Plan, plan
from sweeper.planning.seconds import Seconds, Speeds
from sweeper.spec.outcomes import DONE
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.damaged import consequence, find_damaged
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import MemoryCache
from sweeper.store.row import planned_columns
from sweeper.upstream.hydras import config_loader

Line = dict[str, Any]


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
        configs, ledger = _checked(options.overrides, options.config_dir)
        planned = plan(configs, ledger, device=machine.device)
    except ValueError as error:
        return refuse(error, "This grid cannot run.")
    if options.schedule_plot:
        try:
            draw_schedules(planned.specs, Path(options.schedule_plot))
        except ValueError as error:
            return refuse(error, "Nothing was drawn.")
    memory = MemoryCache(ledger.results, machine.device)
    traces = options.memory is not False and trace_unknown(planned, memory, is_asked=options.memory)
    planned = plan(configs, ledger, device=machine.device) if traces else planned
    try:
        seconds = _seconds(planned.specs, ledger, machine)
        unknown = [spec for spec in planned.without_result if not seconds[spec.run_id]]
        if options.probe and unknown:
            _probe(unknown, ledger, machine)
            seconds = _seconds(planned.specs, ledger, machine)
    except ValueError as error:
        return refuse(error, "Nothing was timed.")
    lines = plan_lines(planned, seconds)
    billed = bill([(spec, seconds[spec.run_id]) for spec in planned.without_result], machine)
    if options.json:
        say(json.dumps({"runs": lines, **billed.totals}))
    else:
        show(planned, lines, text_console())
        say(billed.describe(ledger.results))
    is_sequential = "hydra/sweeper=sequential" in options.overrides
    _say_what_is_refused(planned, ledger, None if is_sequential else configs[0].get("question"))
    if not any(re.match(r"hydra/launcher=(?!local$)", word) for word in options.overrides):
        _say_what_is_missing(planned, machine)
    return DONE


def _seconds(
    specs: Sequence[RunSpec], ledger: Ledger, machine: Machine
) -> Mapping[str, Seconds | None]:
    """The predicted time of runs by run id; None if not known."""
    speeds = Speeds(ledger, machine.device)
    return {spec.run_id: speeds.of(spec) for spec in specs}


def _probe(specs: Sequence[RunSpec], ledger: Ledger, machine: Machine) -> None:
    """Time runs by training their beginnings; announced first, as it prints nothing meanwhile."""
    from sweeper.launch.local.time_probe import probe_times

    note(
        f"Training the first steps of one run of each kind ({several(len(specs), 'run')} in all)..."
    )
    for text in probe_times(specs, ledger.results, machine):
        note(text)


def _say_what_is_refused(planned: Plan, ledger: Ledger, question: str | None) -> None:
    """Name damaged files, and say if a sweep would be refused for its budget or its question."""
    for path in find_damaged(ledger.results):
        note(consequence(path))
    try:
        check_no_question(question)
        account_of(planned, ledger)
    except ValueError as error:
        note(f"A sweep would be refused: {error}")


def _say_what_is_missing(planned: Plan, machine: Machine) -> None:
    """Say why new runs could not start on this machine; they may be meant for another one."""
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
    configs, ledger = _checked(overrides, config_dir)
    device = inspect_machine(jobs="auto", runs_per_gpu=1).device
    return plan(configs, ledger, device=device), ledger


def _checked(overrides: Sequence[str], config_dir: str | None) -> tuple[list[Line], Ledger]:
    """The configs of a command's overrides, with facts about modules and data, and the ledger."""
    configs = configs_of(overrides, config_dir=config_dir)
    ledger = Ledger.from_setting(configs[0].get("results") if configs else "results")
    return list(add_facts(configs, ledger.results)), ledger


def configs_of(overrides: Sequence[str], *, config_dir: str | None) -> list[Line]:
    """The resolved configs of the grid that a command's overrides specify."""
    if config_dir:
        check_config_dir(config_dir, overrides)
        overrides = [*overrides, f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_FOLDER)):
        loader = config_loader()
        return list(expand(loader, with_preset(preset_overrides(loader, overrides), overrides)))


def plan_lines(planned: Plan, seconds: Mapping[str, Seconds | None]) -> list[Line]:
    """One mapping per run: batch split, rates, steps, predicted time and memory, status, warnings.

    Args:
        planned: the runs.
        seconds: their predicted times by run id; None if not known.
    """
    of_kind = {
        spec.kind: _line_of_kind(spec, planned, seconds.get(spec.run_id))
        for spec in _kinds(planned)
    }
    return [{**of_kind[spec.kind], **_own_line(spec, planned)} for spec in planned.specs]


def _kinds(planned: Plan) -> list[RunSpec]:
    return list({spec.kind: spec for spec in planned.specs}.values())


def _line_of_kind(spec: RunSpec, planned: Plan, seconds: Seconds | None) -> Line:
    return {
        **planned_columns(spec),
        **(seconds.predicted.columns if seconds else {}),
        "predicted_parts_s": seconds.parts if seconds else None,
        "micro_batch_from": planned.fits[spec.run_id].source,
        "predicted_memory_classes_gib": dict(planned.fits[spec.run_id].classes) or None,
        "batches": [
            {"first_epoch": first, "global_batch": batch, "steps_per_epoch": spec.steps_at(first)}
            for first, batch in spec.batch_plan.batches()
        ],
        "lr_factor": spec.schedule.peak_lr if spec.config.keeps_own_optimizer else None,
        "metric_name": spec.config.metric,
        "metric_mode": spec.config.metric_mode,
        "most_epochs": spec.most_epochs,
        "total_steps": spec.total_steps,
        "warmup_steps": spec.schedule.warmup_steps,
        "total_examples": spec.batch_plan.examples_before(spec.epochs),
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


def show(planned: Plan, lines: Sequence[Line], console: Console) -> None:
    """Print a plan as a table, with its warnings."""
    words = [spec.words for spec in planned.specs]
    differences, layouts = Differences(words), list(map(_layout, lines))
    columns = [*columns_of(words, differences), *layout_column(layouts), *_columns(lines)]
    console.print(common(differences, set(layouts)), soft_wrap=False)
    console.print(FittedTable(columns), soft_wrap=False)
    if any(layout.endswith("?") for layout in layouts):
        console.print(
            "Layouts with ? are upper bounds until memory is traced (`sweeper plan --memory`)."
        )
    kinds = _kinds(planned)
    memory = [describe_memory(spec, planned.fits[spec.run_id]) for spec in kinds]
    said = [*memory, *map(rates, kinds), *map(course, kinds), *map(compared, kinds)]
    for sentence in dict.fromkeys(said):
        if sentence:
            console.print(sentence)
    warnings = (f"Warning: {warning}" for warning in planned.distinct_warnings)
    for text in (*planned.repeat_notes, *warnings):
        console.print(text)
    for sentence in dict.fromkeys(map(guarantees, kinds)):
        if sentence:
            console.print(sentence)
    if said := describe_changes(planned.changes, planned.specs[0].config.code):
        console.print(said)
    new = sum(line["ledger"] == "new" for line in lines)
    console.print(f"{several(len(lines), 'run')}, {new:,} of them new. Nothing was started.")


def _columns(lines: Sequence[Line]) -> list[Column]:
    """Columns for rates, steps, time, and the status in the ledger."""
    warmups = [f"{line['warmup_steps']:g}" for line in lines]
    times = [duration(line["predicted_s"]) if line["predicted_s"] else "" for line in lines]
    return [
        Column(head="peak lr", cells=[_peak(line) for line in lines]),
        Column(head="steps/epoch", cells=[f"{line['steps_per_epoch']:,}" for line in lines]),
        Column(head="steps", cells=[f"{line['total_steps']:,}" for line in lines], spared=4),
        Column(head="warmup steps", cells=warmups, spared=3),
        Column(head="time", cells=times, spared=1),
        Column(head="ledger", cells=[line["ledger"] for line in lines]),
    ]


def _peak(line: Line) -> str:
    """The peak rate, or the factor on the module's own rates."""
    return f"{line['peak_lr']:g}" if line["peak_lr"] else f"x {line['lr_factor']:g}"


def _layout(line: Line) -> str:
    layout = f"{line['world_size']}x{line['micro_batch']}x{line['accumulation_steps']}"
    return layout + "?" * (line["micro_batch_from"] == "to be traced")


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
        help="trace the memory of every kind of run that was not traced yet, training nothing; by "
        "default only of runs without a result, for half a minute at most",
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
