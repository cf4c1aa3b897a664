"""Predicted memory by class, against the micro-batch and against the global batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.figures.sheet import Drawing, Sheet, save
from analysis.figures.style import INCHES, Width
from sweeper.spec.run_memory import CLASSES, DEVICE
from sweeper.store.memory_cache import KindMemory, traced_kinds

#: What this reads of the runs table.
COLUMNS = (
    "run_id", "model", "optimizer", "precision", "data", "device_kind", "world_size", "bn_span",
    "micro_batch", "global_batch", "peak_memory_gib",
)  # fmt: skip
_ALIKE = [*COLUMNS[1:8]]
_BARS = (*CLASSES, DEVICE)
_MOST_BARS = 10


def memory_frames(results: Sequence[str], runs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """What each kind of run was predicted to take, and what runs took.

    Returns:
        A name of each kind that was traced and trained, and a row for each micro-batch and for
        each global batch, as `against` says: the classes, and the runs' median and largest peak
        [GiB].
    """
    measured = runs[runs.peak_memory_gib.notna()]
    for folder in results:
        for kind in traced_kinds(Path(folder)):
            named = measured[measured.run_id.isin(kind.run_ids)]
            if named.empty:
                continue
            first = named[_ALIKE].iloc[0]
            alike = measured[(measured[_ALIKE].fillna(0) == first.fillna(0)).all(axis=1)]
            name = f"{first.model}, {first.optimizer}, {first.precision}, {first.device_kind}"
            yield name, _frame(kind, alike)


def _frame(kind: KindMemory, runs: pd.DataFrame) -> pd.DataFrame:
    usual = int(runs.micro_batch.mode().iloc[0])
    sizes = {int(m * 2**n) for m in runs.micro_batch.unique() for n in (-2, -1, 0, 1)}
    micro = sorted(size for size in sizes if size)[-_MOST_BARS:]
    batches = runs[runs.micro_batch == usual].global_batch.unique()
    places = [("micro_batch", m, m) for m in micro]
    places += [("global_batch", batch, usual) for batch in sorted(map(int, batches))[-_MOST_BARS:]]
    rows: list[dict[str, object]] = []
    for against, x, micro_batch in places:
        peaks = runs[(runs.micro_batch == micro_batch) & (runs[against] == x)].peak_memory_gib
        rows.append(
            {
                "against": against,
                "x": x,
                "micro_batch": micro_batch,
                **kind.classes(micro_batch),
                "peak_gib": peaks.median(),
                "most_gib": peaks.max(),
            }
        )
    return pd.DataFrame(rows)


def draw_all_memory(
    results: Sequence[str], runs: pd.DataFrame, folder: Path, width: Width = "screen"
) -> Iterator[Path]:
    """Draw the memory by class of each kind of run that was traced and trained."""
    for number, (name, frame) in enumerate(memory_frames(results, runs), 1):
        yield from save(draw_memory(name, frame, width=width), folder, f"memory-{number}")


@style.use_style()
def draw_memory(name: str, frame: pd.DataFrame, *, width: Width = "screen") -> Drawing:
    """Classes of memory as stacked bars; a dot is the median peak of runs."""
    figure = Figure(figsize=(INCHES[width], 3.4), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 2, sharey=True).flat)
    sheet = Sheet(figure, panels, width, across=2)
    for axes, against in zip(panels, ("micro_batch", "global_batch"), strict=True):
        _draw(axes, frame[frame.against == against])
    panels[0].set_xlabel("micro-batch [examples]")
    panels[1].set_xlabel("global batch [examples]")
    panels[0].set_ylabel("memory of a rank [GiB]")
    usual = frame[frame.against == "global_batch"].micro_batch.iloc[0]
    note = (
        f"Right: micro-batches of {usual:,}. Classes of tensors were traced without training; "
        "device: all else, as measured in runs of the same kind; dots: median peak of runs."
    )
    return sheet.finish(frame, f"Memory by class: {name}", [note])


def _draw(axes: Axes, frame: pd.DataFrame) -> None:
    places, floor = np.arange(len(frame)), np.zeros(len(frame))
    marks = style.named_marks(_BARS)
    for bar in _BARS:
        sizes = frame[bar].to_numpy()
        label = bar.replace("_", " ")
        axes.bar(places, sizes, 0.8, floor, color=marks[bar].color, alpha=0.75, label=label)
        floor = floor + sizes
    axes.plot(places, frame.peak_gib, "o", color="white", markeredgecolor="black", label="measured")
    axes.set_xticks(places, [f"{x:,}" for x in frame.x])
