"""Predicted memory by class against the micro-batch; none of it grows with the global batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from analysis.figures import style
from analysis.figures.sheet import Drawing, Sheet, save
from analysis.figures.style import Width
from sweeper.spec.run_memory import CLASSES, DEVICE
from sweeper.store.memory_cache import KindMemory
from sweeper.store.publish import Text, read_as

_CLASSES = (*CLASSES, DEVICE)
_MOST_BARS = 10


class _About(BaseModel):
    """What the memory of a kind of run depends on, as far as it names the kind."""

    module: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    optimizer: dict[str, Any]
    precision: Text
    device: dict[str, Any]


def memory_frames(results: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The predicted memory of each kind of run that was traced and trained.

    Returns:
        A name of the kind; and for micro-batches from a quarter to twice those that were trained,
        the predicted classes and the measured peak [GiB].
    """
    for folder in results:
        for path in sorted(Path(folder, "memory").glob("*/about.json")):
            kind = KindMemory.read(path.parent)
            sizes = {int(size * 2**power) for size in kind.peaks_gib for power in (-2, -1, 0, 1)}
            rows = [
                {"micro_batch": size, **classes, "peak_gib": kind.peaks_gib.get(size)}
                for size in sorted(sizes)[-_MOST_BARS:]
                if size and (classes := kind.classes(size))
            ]
            if rows and (about := read_as(_About, path)):
                groups = (about.module, about.model, about.optimizer)
                names = [str(g.get("_target_", "")).rpartition(".")[2] for g in groups if g]
                name = ", ".join([*names, about.precision, str(about.device.get("kind"))])
                yield name, pd.DataFrame(rows).astype({"peak_gib": float})


def draw_all_memory(
    results: Sequence[str], folder: Path, width: Width = "screen"
) -> Iterator[Path]:
    """Draw the memory by class of each kind of run that was traced and trained."""
    for number, (name, frame) in enumerate(memory_frames(results), 1):
        yield from save(draw_memory(name, frame, width=width), folder, f"memory-{number}")


@style.use_style()
def draw_memory(name: str, frame: pd.DataFrame, *, width: Width = "screen") -> Drawing:
    """Classes of memory as stacked bars; a dot is the measured peak of a run."""
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    places, floor = np.arange(len(frame)), np.zeros(len(frame))
    for bar, mark in style.named_marks(_CLASSES).items():
        label, sizes = bar.replace("_", " "), frame[bar].to_numpy()
        axes.bar(places, sizes, 0.8, floor, color=mark.color, alpha=0.75, label=label)
        floor = floor + sizes
    axes.plot(places, frame.peak_gib, "o", color="white", markeredgecolor="black", label="measured")
    axes.set_xticks(places, [f"{size:,}" for size in frame.micro_batch])
    axes.set_xlabel("micro-batch [examples]")
    axes.set_ylabel("memory of a rank [GiB]")
    note = (
        "Classes of tensors were traced without training; device: all else, corrected by measured "
        "peaks; dots: the peak of a run. Memory does not depend on the global batch."
    )
    return sheet.finish(frame, f"Memory by class: {name}", [note])
