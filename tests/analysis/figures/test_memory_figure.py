"""Memory by class against the micro-batch, and flat against the global batch."""

import pandas as pd
import pytest

from analysis.figures.memory_by_class import COLUMNS, draw_memory, memory_frames
from sweeper.spec.run_memory import CLASSES, CPU, DEVICE, MemoryTrace
from sweeper.spec.run_spec import run_spec, with_micro_batch
from sweeper.store.memory_cache import MemoryCache

GIB = 2**30


@pytest.fixture
def frame(config, tmp_path):
    """Of a kind with a quarter of a GiB for 128 examples, of which two batches were trained."""
    spec = with_micro_batch(run_spec(config(batch=3840)), 128)
    memory = MemoryCache(tmp_path, CPU)
    classes = {
        size: dict.fromkeys(CLASSES, GIB // 4) | {"activations": size * GIB // 512}
        for size in (128, 256)
    }
    memory.record_trace(spec, MemoryTrace(classes=classes, held_gib=0.5))
    memory.record_took(spec, 2.0)
    row = dict.fromkeys(COLUMNS, "same") | {"micro_batch": 128, "peak_memory_gib": 2.0}
    runs = [
        row | {"run_id": spec.run_id, "global_batch": 3840},
        row | {"run_id": "other", "global_batch": 7680, "peak_memory_gib": 2.2},
        row | {"run_id": "third", "global_batch": 3840, "model": "another"},
    ]
    ((name, found),) = memory_frames([str(tmp_path)], pd.DataFrame(runs))
    assert name == "same, same, same, same"
    return found


def test_activations_grow_with_the_micro_batch_and_nothing_with_the_batch(frame):
    by_micro = frame[frame.against == "micro_batch"].set_index("x")
    by_batch = frame[frame.against == "global_batch"].set_index("x")

    assert by_micro.activations.to_dict() == {32: 0.0625, 64: 0.125, 128: 0.25, 256: 0.5}
    assert set(by_micro.parameters) == {0.25}
    assert by_batch.index.to_list() == [3840, 7680]
    assert by_batch[[*CLASSES, DEVICE]].drop_duplicates().shape[0] == 1


def test_what_runs_took_stands_beside_and_corrects_the_device(frame):
    at = frame.set_index(["against", "x"])

    assert at.loc[("global_batch", 7680), "peak_gib"] == 2.2
    assert at.loc[("micro_batch", 128), "peak_gib"] == pytest.approx(2.1)
    assert at.loc[("micro_batch", 128), [*CLASSES, DEVICE]].sum() == pytest.approx(2.0)
    assert pd.isna(at.loc[("micro_batch", 256), "peak_gib"])


def test_bars_are_stacked_to_the_predicted_sum(frame):
    left, right = draw_memory("a kind", frame).figure.axes

    for axes, against in ((left, "micro_batch"), (right, "global_batch")):
        sums = frame[frame.against == against][[*CLASSES, DEVICE]].sum(axis=1)
        tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
        assert tops == pytest.approx(sums.tolist())
