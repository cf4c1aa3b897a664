"""Micro-batches that must fit into a stated memory: tried in processes of their own, once."""

from pathlib import Path

import pytest

from lightning_modules.modules.checkpoint_diff import relative_differences
from sweeper.planning.plan import plan
from sweeper.spec.memory import CPU
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


def tried(results: Path) -> list[str]:
    """The tries that are remembered: 64-took, 128-over."""
    return sorted(path.stem for path in results.glob("probes/*/*-*.json"))


@pytest.mark.slow
def test_the_largest_that_fits_is_found_once_and_changes_nothing_else(
    launch, short, results, tmp_path
):
    """Beyond what micro-batches of 32 take, 64 need 3 x 32 = 96 MiB and 128 need 288 MiB.

    The limit lies in the middle: what libraries hold of a process differs by the load of a machine.
    """
    free = launch({**HUNGRY, "micro_batch": 32}, into=tmp_path / "free").iloc[0]
    limit = (free.peak_memory_gib + 192 * MIB) / 0.95
    limited = {**HUNGRY, "memory_limit_gib": limit}

    rows = launch(limited, {**limited, "batch": 128})

    assert tried(results) == ["128-over", "32-took", "64-took"]
    assert set(rows.outcome) == {"finished"}
    assert set(rows.micro_batch) == {64}
    assert (rows.accumulation_steps * 64 == rows.global_batch).all()
    assert (rows.peak_memory_gib <= limit).all()
    assert not list(results.glob("probes/*/probing"))

    same = rows[rows.run_id == free.run_id].iloc[0]
    checkpoints = [
        folder / "attempts" / free.run_id / "checkpoint.ckpt"
        for folder in (results, tmp_path / "free")
    ]
    assert max(relative_differences(checkpoints)) < 1e-5
    assert same.lr_series_hash == free.lr_series_hash

    next_sweep = plan([short(**limited, seed=3)], Ledger(results), device=CPU)
    (fit,) = next_sweep.fits.values()
    assert (fit.source, next_sweep.specs[0].split.micro_batch) == ("probed", 64)


def test_if_nothing_fits_the_row_says_what_to_do(launch, results):
    row = launch({**HUNGRY, "memory_limit_gib": 0.01}).iloc[0]

    assert (row.outcome, row.micro_batch) == ("out_of_memory", 32)
    assert row.reason.startswith(
        "the smallest micro-batch must fit in memory_limit_gib=0.01; got micro_batch=32, the "
        "smallest that can make up batch=256 on 1 rank(s) with bn_span=32, and it needs more. "
        "Provide more memory, or choose a smaller model"
    )
    assert tried(results) == ["32-over"]


@pytest.mark.slow
def test_a_run_out_of_memory_lowers_what_is_remembered(launch, short, results):
    """The try is too short to see it: from its third epoch on the model takes too much with 768."""
    greedy = {"model": {"_target_": "provoked.GreedyAboveHalf"}, "epochs": 3, "bn_span": 384,
              "memory_limit_gib": 64}  # fmt: skip

    row = launch(greedy).iloc[0]

    assert (row.outcome, row.micro_batch, row.attempt) == ("finished", 384, 2)
    assert "micro_batch=384 since attempt 1 ran out of memory with micro_batch=768" in row.reason
    assert tried(results) == ["384-took", "768-over", "768-took"]
    next_run = MemoryCache(results, CPU).fit(run_spec(short(**greedy, seed=1)))
    assert (next_run.source, next_run.spec.split.micro_batch) == ("probed", 384)


def test_a_model_that_fails_has_its_own_reason_and_a_log_of_its_try(launch, results):
    row = launch({"model": {"_target_": "provoked.Raising"}, "memory_limit_gib": 64}).iloc[0]

    assert row.reason == "RuntimeError: the third micro-batch is cursed"
    assert tried(results) == []
    (log,) = results.glob("probes/*/log.txt")
    assert "the third micro-batch is cursed" in log.read_text()


@pytest.mark.slow
def test_a_real_network_runs_within_the_limit_and_the_next_larger_would_not(
    launch, results, tmp_path
):
    """SmallCNN with 256 channels: each doubling of the micro-batch takes a tenth of a GiB more."""
    wide = {
        "model": {"_target_": "lightning_modules.models.small_cnn.SmallCNN",
                  "channels": [256, 8], "hidden": 64},
        "data": {**HUNGRY["data"], "num_train_examples": 8192},
        "batch": 4096, "bn_span": 1024, "micro_batch_limit": 4096,
    }  # fmt: skip
    base = launch({**wide, "micro_batch": 1024}, into=tmp_path / "base").iloc[0].peak_memory_gib

    limit = (base + 0.2) / 0.95
    row = launch({**wide, "memory_limit_gib": limit}).iloc[0]

    assert tried(results) == ["1024-took", "2048-took", "4096-over"]
    assert (row.outcome, row.micro_batch) == ("finished", 2048)
    assert row.peak_memory_gib <= limit
