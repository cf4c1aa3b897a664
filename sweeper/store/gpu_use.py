"""What a run took of its GPUs, from what its ranks noted beside their attempts."""

import json
from pathlib import Path
from typing import Any

from sweeper.spec.tariff import total_kwh
from sweeper.spec.worker_args import FIRST_STEP


def gpu_use_note(rank: int | str) -> str:
    """The name of a rank's note in the attempt's folder."""
    return f"gpu-use-{rank}.json"


def energy_kwh(attempt: Path) -> float | None:
    """What all ranks took, in an attempt and in those that it resumes from [kWh].

    None if a part of it was not counted: a sum without that part would be of another training.

    Args:
        attempt: the attempt's folder, beside those of the earlier ones.
    """
    parts: list[float | None] = []
    for number in range(int(attempt.name), 0, -1):
        folder = attempt.with_name(f"{number:03d}")
        if notes := _notes(folder):
            is_whole = len(notes) == notes[0]["world_size"]
            parts += [note["kwh"] for note in notes] if is_whole else [None]
            if not notes[0]["is_resumed"]:
                break
        elif (folder / FIRST_STEP).exists():  # without, nothing was trained
            return None
    return total_kwh(parts)


def gpu_taken(attempt: Path) -> tuple[float, float] | None:
    """What an attempt took of its one GPU: memory [GiB], and the part of time that it was in use.

    None if it was not alone there, or was too short to tell.
    """
    notes = _notes(attempt)
    if len(notes) != 1 or notes[0]["world_size"] > 1 or notes[0]["kwh"] is None:
        return None
    device_gib, use_frac = notes[0].get("device_gib"), notes[0].get("use_frac")
    return None if device_gib is None or use_frac is None else (device_gib, use_frac)


def _notes(folder: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(path.read_text()) for path in sorted(folder.glob(gpu_use_note("*")))]
    except (OSError, ValueError):
        return []
