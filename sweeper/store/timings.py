"""What probes found of the time that runs take, remembered beside the runs.

    results/timings/<hash>.json    of a kind of run on a device

One writer per file, published by rename; a file that cannot be read is as good as none.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sweeper.store.publish import publish_text

_Seconds = Annotated[float, Field(ge=0)]


class Timing(BaseModel):
    """What a run took.

    Attributes:
        accumulation_steps: micro-batches per rank per optimizer step [count].
        step_s: an optimizer step [seconds].
        start_s: until training began [seconds].
        between_s: an epoch, without its steps [seconds].
        evaluation_s: of that its evaluation; None if it is not known [seconds].
        num_parameters: that were trained; None if it is not known [count].
        power_kw: that each rank's device took on the mean; None if it was not counted [kW].
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    accumulation_steps: Annotated[int, Field(ge=1)]
    step_s: Annotated[float, Field(gt=0)]
    start_s: _Seconds
    between_s: _Seconds
    evaluation_s: _Seconds | None = None
    num_parameters: Annotated[int, Field(ge=0)] | None = None
    power_kw: Annotated[float, Field(ge=0)] | None = None


class _Remembered(BaseModel):
    kind: str
    device: str
    timings: list[Timing]


def read_timings(results: Path) -> dict[tuple[str, str], list[Timing]]:
    """What is remembered, by kind and device."""
    found: dict[tuple[str, str], list[Timing]] = {}
    for path in (results / "timings").glob("*.json"):
        try:
            one = _Remembered.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue
        found[one.kind, one.device] = one.timings
    return found


def note_timings(kind: str, device: str, timings: Sequence[Timing], results: Path) -> None:
    """Remember what was found of a kind of run on a device, in place of what was."""
    name = hashlib.sha256(f"{kind} {device}".encode()).hexdigest()[:12]
    content = _Remembered(kind=kind, device=device, timings=list(timings))
    path = results / "timings" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_text(path, content.model_dump_json())
