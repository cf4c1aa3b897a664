"""`sweeper doctor`: find what would go wrong on this machine, and say what to do about it.

Run it on the login node and inside a job: the findings differ. With the overrides of a sweep, such
as module._target_=my.Module, it looks at your project instead.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from sweeper.commands.checks.check import Check, Severity
from sweeper.commands.checks.cluster import cluster_checks
from sweeper.commands.checks.folders import folder_checks
from sweeper.commands.checks.machine import machine_checks
from sweeper.commands.checks.project import project_checks
from sweeper.commands.refusals import CommandParser, refuse
from sweeper.commands.show_plan import configs_of
from sweeper.console.printing import note, say, text_console, whole_number
from sweeper.spec.outcomes import DONE, RUN_FAILED
from sweeper.spec.sentences import several

_STYLE = {Severity.GOOD: "green", Severity.WARNING: "yellow", Severity.BROKEN: "red"}


def main(arguments: Sequence[str]) -> int:
    """Print what was found; return 1 if something would break."""
    options = _parser().parse_intermixed_args(arguments)
    checks: list[Check] = []
    console = text_console(quiet=options.json)
    try:
        for check in _make_checks(options):
            checks.append(check)
            console.print(f"{check.severity:<8}", style=_STYLE[check.severity], end="")
            console.print(f"{check.what}: {check.found}")
            if check.do:
                console.print(f"        {check.do}")
    except ValueError as error:
        return refuse(error)
    counts = {severity: sum(c.severity == severity for c in checks) for severity in Severity}
    console.print(
        f"{counts[Severity.BROKEN]} broken, {several(counts[Severity.WARNING], 'warning')}, "
        f"{counts[Severity.GOOD]} good."
    )
    if options.json:
        say(json.dumps([asdict(check) for check in checks]))
    return RUN_FAILED if counts[Severity.BROKEN] else DONE


def _make_checks(options: argparse.Namespace) -> Iterator[Check]:
    is_run = any("=" in word or word.startswith("~") for word in options.words)
    overrides = options.words if is_run else []
    if not overrides and len(options.words) > 1:
        msg = f"doctor checks one results folder; got {' '.join(options.words)}. Name one."
        raise ValueError(msg)
    if overrides:
        config, *others = configs_of(overrides, config_dir=options.config_dir)
        if others:
            note(f"Checking the first of {1 + len(others)} points.")
        has_batch = any(word.startswith(("batch=", "+experiment=")) for word in overrides)
        yield from project_checks(config, has_batch=has_batch)
    else:
        yield from machine_checks(devices=options.devices)
        yield from folder_checks(Path(*options.words[:1] or ["results"]))
        yield from cluster_checks(devices=options.devices)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="sweeper doctor", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="a results folder (default: results), or the overrides of a sweep"
    )
    parser.add_argument("--config-dir", help="a folder with your own configs, as for a sweep")
    parser.add_argument(
        "--devices", type=whole_number(1, 1024), default=1, help="ranks on each node (1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    return parser
