"""Times of runs as measured by probes, stored in the results folder.

    results/timings/<hash>.json    timings of a kind of run on a device

Files are published by rename; a file that cannot be read counts as missing.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sweeper.store.publish import publish_text

_Seconds = Annotated[float, Field(ge=0)]


class Timing(BaseModel):
    """The time that a run took, by activity.

    Attributes:
        accumulation_steps: micro-batches per rank per optimizer step [count].
        step_s: time of an optimizer step [seconds].
        start_s: time until training began [seconds].
        between_s: time of an epoch without its steps [seconds].
        evaluation_s: part of `between_s`: the evaluation; None if not known [seconds].
        num_parameters: trained parameters; None if not known [count].
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    accumulation_steps: Annotated[int, Field(ge=1)]
    step_s: Annotated[float, Field(gt=0)]
    start_s: _Seconds
    between_s: _Seconds
    evaluation_s: _Seconds | None = None
    num_parameters: Annotated[int, Field(ge=0)] | None = None


class _Stored(BaseModel):
    kind: str
    device: str
    timings: list[Timing]


def read_timings(results: Path) -> dict[tuple[str, str], list[Timing]]:
    """The stored timings, by kind of run and device."""
    found: dict[tuple[str, str], list[Timing]] = {}
    for path in (results / "timings").glob("*.json"):
        try:
            stored = _Stored.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue
        found[stored.kind, stored.device] = stored.timings
    return found


def store_timings(kind: str, device: str, timings: Sequence[Timing], results: Path) -> None:
    """Store the timings of a kind of run on a device, replacing earlier timings."""
    name = hashlib.sha256(f"{kind} {device}".encode()).hexdigest()[:12]
    content = _Stored(kind=kind, device=device, timings=list(timings))
    path = results / "timings" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_text(path, content.model_dump_json())
