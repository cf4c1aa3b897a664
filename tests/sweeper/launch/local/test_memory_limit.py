"""Micro-batches that must fit into a stated memory: by prediction, and by what runs took."""

from pathlib import Path

import pandas as pd
import pytest

from lightning_modules.modules.checkpoint_diff import relative_differences
from sweeper.planning.plan import plan
from sweeper.spec.run_memory import CPU
from sweeper.spec.run_spec import run_spec
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import MemoryCache

MIB = 2**-10
HUNGRY = {
    "model": {"_target_": "provoked.Hungry"},
    "data": {"_target_": "lightning_modules.data.digits.Digits", "num_train_examples": 256,
             "num_val_examples": 360, "validation_fold": 0},
    "batch": 256, "bn_span": 32, "micro_batch_limit": 256, "keep_checkpoint": True,
}  # fmt: skip


def known(results: Path) -> list[str]:
    """What is remembered of micro-batches: 64-took, 128-over."""
    return sorted(path.stem for path in results.glob("memory/*/*-*.json"))


@pytest.mark.slow
def test_the_largest_that_fits_is_predicted_and_changes_nothing_else(
    launch, short, results, tmp_path
):
    """Beyond what micro-batches of 32 take, 64 need 3 x 32 = 96 MiB and 128 need 288 MiB."""
    free = launch({**HUNGRY, "micro_batch": 32}, into=tmp_path / "free").iloc[0]
    limit = (free.peak_memory_gib + 192 * MIB) / 0.95
    limited = {**HUNGRY, "memory_limit_gib": limit}

    rows = launch(limited, {**limited, "batch": 128})

    assert known(results) == ["64-took"]
    assert set(rows.outcome) == {"finished"}
    assert set(rows.micro_batch) == {64}
    assert (rows.accumulation_steps * 64 == rows.global_batch).all()
    assert (rows.peak_memory_gib <= limit).all()
    assert (abs(rows.predicted_memory_gib / rows.peak_memory_gib - 1) < 0.1).all()

    same = rows[rows.run_id == free.run_id].iloc[0]
    checkpoints = [
        folder / "attempts" / free.run_id / "checkpoint.ckpt"
        for folder in (results, tmp_path / "free")
    ]
    assert max(relative_differences(checkpoints))[0] < 1e-5
    assert same.lr_series_hash == free.lr_series_hash

    next_sweep = plan([short(**limited, seed=3)], Ledger(results), device=CPU)
    (fit,) = next_sweep.fits.values()
    assert (fit.source, next_sweep.specs[0].split.micro_batch) == ("predicted", 64)


def test_if_nothing_fits_the_row_says_what_to_do(launch, results):
    row = launch({**HUNGRY, "memory_limit_gib": 0.01}).iloc[0]

    assert (row.outcome, row.micro_batch) == ("out_of_memory", 32)
    assert row.reason.startswith(
        "the smallest micro-batch must fit in memory_limit_gib=0.01; got micro_batch=32, the "
        "smallest that can make up batch=256 on 1 rank with bn_span=32, and it is predicted to "
        f"need {row.predicted_memory_gib:.3g} GiB. Provide more memory, or choose a smaller model"
    )
    assert known(results) == []


@pytest.mark.slow
def test_a_run_out_of_memory_lowers_what_is_remembered(launch, short, results):
    """The trace is too short to see it: from its third epoch on the model takes too much at 768."""
    greedy = {"model": {"_target_": "provoked.GreedyAboveHalf"}, "epochs": 3, "bn_span": 384,
              "memory_limit_gib": 64, "micro_batch_limit": 768}  # fmt: skip

    row = launch(greedy).iloc[0]

    assert (row.outcome, row.micro_batch, row.attempt) == ("finished", 384, 2)
    assert "micro_batch=384 since attempt 1 ran out of memory with micro_batch=768" in row.reason
    assert known(results) == ["384-took", "768-over"]
    next_run = MemoryCache(results, CPU).fit(run_spec(short(**greedy, seed=1)))
    assert (next_run.source, next_run.spec.split.micro_batch) == ("predicted", 384)


@pytest.mark.slow
def test_a_model_that_cannot_be_traced_has_its_own_reason_and_its_largest_micro_batch(
    launch, results
):
    raising = {"model": {"_target_": "provoked.Raising"}, "memory_limit_gib": 64}
    row = launch({**raising, "micro_batch_limit": 768}).iloc[0]

    assert row.reason == "RuntimeError: the third micro-batch is cursed"
    assert row.micro_batch == 768
    assert pd.isna(row.predicted_memory_gib)
    (trace,) = results.glob("memory/*/trace.json")
    assert "the third micro-batch is cursed" in trace.read_text()
