"""A run's progress within an epoch: a small file in its attempt's folder, replaced as it trains."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_FILE = "step-progress.json"

_Number = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]


class StepProgress(BaseModel):
    """How far a run is, and how fast it trains.

    Attributes:
        epoch: the epoch in training, 1-based.
        step: optimizer steps taken in this epoch [steps].
        steps: optimizer steps of the whole epoch [steps].
        resumed_at: position in training at which this attempt began [epochs].
        examples_per_s: training speed over about the last half minute of this attempt, without
            validation; None before the second step [examples/s].
        left_s: time to the end of the run at this speed, including validation if it was timed;
            None before the second step [seconds].
        first_step_s: time of this attempt's first step, which a compiled model compiles in; None
            after the second [seconds].
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    epoch: _Count
    step: _Count
    steps: _Count
    resumed_at: _Number
    examples_per_s: _Number | None
    left_s: _Number | None
    first_step_s: _Number | None = None

    @property
    def epochs_done(self) -> float:
        """Epochs trained, including the finished fraction of the current epoch [epochs]."""
        return max(0, self.epoch - 1) + min(1.0, self.step / max(1, self.steps))


def write_step_progress(progress: StepProgress, folder: Path) -> None:
    """Replace an attempt's previous report; readers see a whole report or none.

    It is outdated within a second, so it is not flushed to disk, and no run fails because of it.
    """
    partial = folder / f".{_FILE}.tmp"
    with suppress(OSError):
        partial.write_text(progress.model_dump_json())
        partial.replace(folder / _FILE)


def read_step_progress(folder: Path) -> StepProgress | None:
    """An attempt's latest report; None if there is none or it is damaged."""
    try:
        return StepProgress.model_validate_json((folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
