"""The energy of an attempt, from the notes of its ranks in the attempts' folders."""

from dataclasses import dataclass
from pathlib import Path

from sweeper.spec.worker_args import FIRST_STEP
from sweeper.store.publish import read_as


@dataclass(frozen=True, slots=True)
class _Note:
    kwh: float | None
    world_size: int
    is_resumed: bool


def energy_note(rank: int | str) -> str:
    """The name of a rank's note in the attempt's folder."""
    return f"energy-{rank}.json"


def energy_kwh(attempt: Path) -> float | None:
    """Energy of all ranks, over the attempt of this folder and those that it resumes from [kWh].

    None if any part was not measured, because the sum would then not be that of the training.
    """
    total_kwh, is_known = 0.0, False
    for number in range(int(attempt.name), 0, -1):
        folder = attempt.with_name(f"{number:03d}")
        if notes := [read_as(_Note, path) for path in sorted(folder.glob(energy_note("*")))]:
            parts = [note.kwh for note in notes if note and note.kwh is not None]
            if notes[0] is None or len(parts) != notes[0].world_size:
                return None
            total_kwh, is_known = total_kwh + sum(parts), True
            if not notes[0].is_resumed:
                break
        elif (folder / FIRST_STEP).exists():  # without this file, nothing was trained
            return None
    return total_kwh if is_known else None
