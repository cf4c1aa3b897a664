"""How far a run is inside an epoch: a small file in its attempt's folder, replaced as it trains."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_FILE = "step-progress.json"

_Number = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]


class StepProgress(BaseModel):
    """Where a run is, and how fast it gets on.

    Attributes:
        epoch: that is trained, 1-based.
        step: optimizer steps of this epoch that were taken [steps].
        steps: optimizer steps of this epoch [steps].
        resumed_at: where this attempt began [epochs].
        examples_per_s: trained on in the last half minute or so of this attempt, validation left
            out; None before the second step.
        left_s: to the end of the run, at this rate, validation included as far as it was seen
            [seconds]; None before the second step.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    epoch: _Count
    step: _Count
    steps: _Count
    resumed_at: _Number
    examples_per_s: _Number | None
    left_s: _Number | None

    @property
    def epochs_done(self) -> float:
        """With the part of the epoch that is trained [epochs]."""
        return max(0, self.epoch - 1) + min(1.0, self.step / max(1, self.steps))


def write_step_progress(progress: StepProgress, folder: Path) -> None:
    """Replace what an attempt reported before; readers see all of it or nothing.

    It is out of date in a second, so nothing waits for the disk, and no run fails for it.
    """
    partial = folder / f".{_FILE}.tmp"
    with suppress(OSError):
        partial.write_text(progress.model_dump_json())
        partial.replace(folder / _FILE)


def read_step_progress(folder: Path) -> StepProgress | None:
    """What an attempt reported last; None if it has not, or what is there is damaged."""
    try:
        return StepProgress.model_validate_json((folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
