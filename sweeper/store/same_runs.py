"""Points that need no training of their own, and the runs whose rows serve for them.

    results/same_runs/<hash>.json    some points of a sweep: planned columns, and `trained_as`

A file is written before anything is trained; a repeated sweep writes the same one again.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeper.spec.run_spec import RunSpec
from sweeper.store.publish import publish_json
from sweeper.store.row import planned_row

_FOLDER = "same_runs"


def note_same(pairs: Sequence[tuple[RunSpec, RunSpec]], results: Path) -> None:
    """Record points, each with the run that is trained for it."""
    if not pairs:
        return
    points = [{**planned_row(point), "trained_as": trained.run_id} for point, trained in pairs]
    digest = hashlib.sha256(json.dumps(points, sort_keys=True).encode()).hexdigest()[:12]
    path = results / _FOLDER / f"{digest}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_json(path, points)


def read_same(results: Path) -> list[dict[str, Any]]:
    """The points recorded in a results folder; unreadable files are left out."""
    found: list[dict[str, Any]] = []
    for path in sorted((results / _FOLDER).glob("[!.]*.json")):
        try:
            points = json.loads(path.read_text())
            found += [p for p in points if p["run_id"] and p["trained_as"]]
        except (OSError, ValueError, TypeError, KeyError):  # damaged, or not ours
            continue
    return found
