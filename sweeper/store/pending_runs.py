"""What a sweep on this machine has still to do, for whoever looks while it runs.

    results/.waiting-<host>-<pid>.json    the owner, and a line for each run; gone when it ends

A list that a killed sweep left is known by its owner, and removed by the next sweep.
"""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.spec.run_spec import RunSpec
from sweeper.store.lease import Owner, this_process

_PREFIX = ".waiting-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The list of one sweep.

    Attributes:
        owner: the sweep's process.
        runs: what is known of each run before it starts, with columns of the runs table.
    """

    owner: Owner
    runs: Sequence[dict[str, Any]]


@contextmanager
def announced(attempts: Sequence[tuple[RunSpec, int]], results: Path) -> Generator[None]:
    """List the runs of a sweep while the block runs.

    Args:
        attempts: the runs that it has to make, and the number of the attempt at each.
        results: the results folder.
    """
    for path, listed in _lists(results):
        if listed.owner.is_alive() is False:
            path.unlink(missing_ok=True)
    if not attempts:
        yield
        return
    me = this_process()
    path = results / f"{_PREFIX}{me.host}-{me.pid}.json"
    partial = path.with_suffix(".tmp")
    runs = [_line(spec, number) for spec, number in attempts]
    partial.write_text(json.dumps({"owner": asdict(me), "runs": runs}))
    partial.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def lists(results: Path) -> list[Waiting]:
    """The lists of the sweeps that run, or may run on another machine, into a results folder."""
    found = [listed for _, listed in _lists(results)]
    return [listed for listed in found if listed.owner.is_alive() is not False]


def _lists(results: Path) -> list[tuple[Path, Waiting]]:
    paths = sorted(results.glob(f"{_PREFIX}*.json"))
    read = [(path, _read(path)) for path in paths]
    return [(path, listed) for path, listed in read if listed]


def _read(path: Path) -> Waiting | None:
    try:
        found = json.loads(path.read_text())
        return Waiting(owner=Owner(**found["owner"]), runs=found["runs"])
    except (OSError, ValueError, TypeError, KeyError):  # gone since it was listed, or foreign
        return None


def _line(spec: RunSpec, number: int) -> dict[str, Any]:
    config = spec.config
    return {
        "run_id": spec.run_id,
        "attempt": number,
        "global_batch": spec.split.global_batch,
        "warmup_epochs": float(spec.schedule.warmup_epochs),
        "lr_rule": config["lr_rule"]["name"],
        "base_lr": float(config["base_lr"]),
        "peak_lr": spec.schedule.peak_lr,
        "seed": config["seed"],
        "epochs": spec.epochs,
    }
