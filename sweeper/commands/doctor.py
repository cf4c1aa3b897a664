"""`python -m sweeper doctor`: looks at where it runs and says what would go wrong, and what to do.

Run it on the login node and inside a job: what it says differs there.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeper.commands.checks.cluster import cluster_checks
from sweeper.commands.checks.finding import Finding, Verdict
from sweeper.commands.checks.folders import folder_checks
from sweeper.commands.checks.machine import machine_checks
from sweeper.spec.exit_codes import DONE, RUN_FAILED

_STYLE = {Verdict.GOOD: "green", Verdict.WARNING: "yellow", Verdict.BROKEN: "red"}


def main() -> None:
    """Print what was found; leave with 1 if something would break."""
    arguments = _parser().parse_args()
    findings: list[Finding] = []
    console = Console(quiet=arguments.json)
    for finding in look(Path(arguments.results), devices=arguments.devices):
        findings.append(finding)
        _show(finding, console)
    _show_counts(findings, console)
    if arguments.json:
        print(json.dumps([_line(finding) for finding in findings]))  # noqa: T201
    broken = any(finding.verdict == Verdict.BROKEN for finding in findings)
    sys.exit(RUN_FAILED if broken else DONE)


def look(results: Path, *, devices: int) -> Iterator[Finding]:
    """Look at the machine, the folders and the cluster.

    Args:
        results: the folder that sweeps are to write to.
        devices: ranks on each node that runs are to have [count].
    """
    yield from machine_checks(devices=devices)
    yield from folder_checks(results)
    yield from cluster_checks(devices=devices)


def _line(finding: Finding) -> dict[str, Any]:
    return {"verdict": str(finding.verdict), "what": finding.what, "found": finding.found,
            "do": finding.do}  # fmt: skip


def _show(finding: Finding, console: Console) -> None:
    console.print(f"{finding.verdict:<8}", style=_STYLE[finding.verdict], end="")
    console.print(f"{finding.what}: {finding.found}", highlight=False, markup=False, soft_wrap=True)
    if finding.do:
        console.print(f"        {finding.do}", highlight=False, markup=False, soft_wrap=True)


def _show_counts(findings: list[Finding], console: Console) -> None:
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in Verdict}
    console.print(
        f"{counts[Verdict.BROKEN]} broken, {counts[Verdict.WARNING]} warnings, "
        f"{counts[Verdict.GOOD]} good.",
        highlight=False,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sweeper doctor", description=__doc__)
    parser.add_argument("results", nargs="?", default="results", help="folder of the tables")
    parser.add_argument("--devices", type=int, default=1, help="ranks on each node")
    parser.add_argument("--json", action="store_true", help="for scripts")
    return parser
