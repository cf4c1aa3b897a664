"""Memory by class against the micro-batch."""

import pandas as pd
import pytest

from analysis.figures.memory_by_class import draw_memory, memory_frames
from sweeper.spec.run_memory import CLASSES, CPU, DEVICE, MemoryTrace
from sweeper.spec.run_spec import run_spec, with_micro_batch
from sweeper.store.memory_cache import MemoryCache

GIB = 2**30


def test_bars_are_predicted_classes_and_dots_are_measured_peaks(config, tmp_path):
    """128 examples take a quarter of a GiB of activations; kinds that were not trained are left."""
    spec = with_micro_batch(run_spec(config(batch=3840)), 128)
    memory = MemoryCache(tmp_path, CPU)
    classes = {
        size: dict.fromkeys(CLASSES, GIB // 4) | {"activations": size * GIB // 512}
        for size in (128, 256)
    }
    trace = MemoryTrace(classes=classes, held_gib=0.5)
    memory.record_trace(spec, trace)
    memory.record_trace(run_spec(config(batch=3840, ema_decay=0.9)), trace)
    memory.record_run(spec, 2.0)

    damaged = with_micro_batch(run_spec(config(batch=3840, precision="64-true")), 128)
    memory.record_trace(damaged, trace)
    memory.record_run(damaged, 4.0)
    (tmp_path / "memory" / memory.key(damaged) / "about.json").write_text("{")

    ((name, frame),) = memory_frames([str(tmp_path)])
    (axes,) = draw_memory(name, frame).figure.axes

    assert name == "Classifier, SmallCNN, SGD, 32-true, cpu"
    at = frame.set_index("micro_batch")
    assert at.activations.to_dict() == {32: 0.0625, 64: 0.125, 128: 0.25, 256: 0.5}
    assert set(at.parameters) == {0.25}
    sums = at[[*CLASSES, DEVICE]].sum(axis=1)
    assert at.peak_gib[128] == pytest.approx(sums[128]) == 2.0
    assert pd.isna(at.peak_gib[256])
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert tops == pytest.approx(sums.tolist())
