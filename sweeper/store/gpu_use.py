"""A run's use of its GPUs, from the notes of its ranks in the attempts' folders."""

import json
from pathlib import Path
from typing import Any

from sweeper.spec.tariff import total_kwh
from sweeper.spec.worker_args import FIRST_STEP


def gpu_use_note(rank: int | str) -> str:
    """The name of a rank's note in the attempt's folder."""
    return f"gpu-use-{rank}.json"


def energy_kwh(attempt: Path) -> float | None:
    """Energy of all ranks, over an attempt and those that it resumes from [kWh].

    None if any part was not measured, because the sum would then not be that of the training.

    Args:
        attempt: the attempt's folder, next to those of the earlier attempts.
    """
    parts: list[float | None] = []
    for number in range(int(attempt.name), 0, -1):
        folder = attempt.with_name(f"{number:03d}")
        if notes := _notes(folder):
            is_whole = len(notes) == notes[0]["world_size"]
            parts += [note["kwh"] for note in notes] if is_whole else [None]
            if not notes[0]["is_resumed"]:
                break
        elif (folder / FIRST_STEP).exists():  # without this file, nothing was trained
            return None
    return total_kwh(parts)


def gpu_taken(attempt: Path) -> tuple[float, float] | None:
    """An attempt's use of its one GPU: memory [GiB], and the fraction of time that it was busy.

    None if it was not alone on one GPU, or too short to measure.
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
