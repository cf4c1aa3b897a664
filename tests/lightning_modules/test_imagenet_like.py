"""ResNet-50 on folders of JPEGs: two ranks, accumulation, worker processes, killed and resumed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

WORDS = [
    "data=images", "data.name=made", "data.num_classes=4", "data.num_train_examples=32",
    "data.num_val_examples=8", "data.size=32", "data.resize=36", "data.num_workers=1",
    "model=resnet50", "model.stem=imagenet", "batch=16", "devices=2", "micro_batch=4", "bn_span=4",
    "epochs=2", "warmup=1", "base_lr=0.02", "schedule=constant", "precision=64-true",
]  # fmt: skip


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for split, num in (("train", 8), ("val", 2)):
        for label in range(4):
            folder = tmp_path / "images" / split / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(num):
                size = (90 + 10 * i, 100)
                pixels = rng.integers(60 * label, 60 * label + 70, (*size[::-1], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.JPEG")
    return tmp_path / "images"


def curves(results):
    columns = ["epoch", "step", "lr", "train_loss", "val_loss", "val_accuracy"]
    return pd.read_parquet(results / "curves").sort_values("epoch")[columns].to_numpy()


def test_a_run_killed_after_an_epoch_ends_as_if_it_had_not_been(sweep_here, root, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = [*WORDS, f"data.root={root}"]
    assert sweep_here(whole, *words) == 0

    command = [sys.executable, "-m", "sweeper", *words, f"results={killed}"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while not [p for p in killed.glob("attempts/*/*/progress.jsonl") if p.stat().st_size]:
        assert first.poll() is None
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert sweep_here(killed, *words) == 0

    row = pd.read_parquet(killed / "runs").iloc[0]
    assert (row.outcome, row.attempt, row.steps) == ("finished", 2, 4)
    assert (row.world_size, row.micro_batch, row.accumulation_steps) == (2, 4, 2)
    assert (row.realised_batch_min, row.realised_batch_max) == (16, 16)
    assert row.num_parameters == 23_508_032 + 2048 * 4 + 4
    np.testing.assert_allclose(curves(killed), curves(whole), rtol=1e-9)
