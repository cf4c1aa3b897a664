"""The runs that a sweep on this machine has yet to start, published for other processes.

    results/.pending-<host>-<pid>.json    the sweep's process, and an entry for each run

A sweep removes its list when it ends; the next sweep removes the list of a killed sweep.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel

from sweeper.spec.run_spec import RunSpec
from sweeper.store.lease import Holder, this_process
from sweeper.store.publish import Text, publish_json, read_as
from sweeper.store.run_columns import planned_columns

_PREFIX = ".pending-"


class PendingRun(BaseModel, extra="allow"):
    """A pending run: the columns of the runs table known so far."""

    run_id: Text
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRuns:
    """The pending runs of one sweep."""

    holder: Holder
    runs: Sequence[PendingRun]


@contextmanager
def list_pending(attempts: Sequence[tuple[RunSpec, int]], results: Path) -> Generator[None]:
    """Publish the pending runs of a sweep, with their attempt numbers, while the block runs."""
    for path, listed in _read_lists(results):
        if listed.holder.is_alive() is False:
            path.unlink(missing_ok=True)
    if not attempts:
        yield
        return
    me = this_process()
    host = re.sub(r"[^\w.-]", "_", me.host)  # Linux allows any character
    path = results / f"{_PREFIX}{host}-{me.pid}.json"
    runs = [{**planned_columns(spec), "attempt": number} for spec, number in attempts]
    publish_json(path, {"holder": asdict(me), "runs": runs})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_pending_runs(results: Path) -> list[PendingRuns]:
    """The pending runs of each sweep that is running, or that may be running elsewhere."""
    found = [listed for _, listed in _read_lists(results)]
    return [listed for listed in found if listed.holder.is_alive() is not False]


def _read_lists(results: Path) -> list[tuple[Path, PendingRuns]]:
    # A list may be gone since the folder was read, or be of another program.
    found = [
        (path, read_as(PendingRuns, path)) for path in sorted(results.glob(f"{_PREFIX}*.json"))
    ]
    return [(path, listed) for path, listed in found if listed]
