"""Runs on this machine: every way to end is a row, and none takes the others down."""

import os
from pathlib import Path

import pandas as pd
import pytest

from sweeper.planning.plan import claim_tasks, plan
from sweeper.store.ledger import Ledger


def provoked(name: str, **changes) -> dict:
    return {"model": {"_target_": f"provoked.{name}"}, **changes}


def only(rows: pd.DataFrame) -> pd.Series:
    assert len(rows) == 1
    return rows.iloc[0]


def test_a_segmentation_fault_is_a_row_and_the_next_run_is_fine(launch, results):
    rows = launch(provoked("Segfaulting"), provoked("Plain"), jobs=1).set_index("model")

    assert rows.outcome["Segfaulting"] == "failed"
    assert rows.reason["Segfaulting"] == "the worker crashed with SIGSEGV; see its log"
    assert "Segmentation fault" in (results / rows.log_path["Segfaulting"]).read_text()
    assert rows.outcome["Plain"] == "finished"


@pytest.mark.parametrize(
    ("name", "changes", "outcome", "reason"),
    [
        ("Raising", {}, "failed", "RuntimeError: the third micro-batch is cursed"),
        (
            "Exploding",
            {"batch": 1536, "micro_batch": 768},
            "diverged",
            "the gradient became non-finite at step 2 of epoch 1, lr=0.15",
        ),
        ("Plain", {"loss_ceiling": 0.01}, "diverged", "exceeded loss_ceiling=0.01"),
        ("Greedy", {"micro_batch": 128}, "out_of_memory", ""),
        ("Sleeping", {"timeout_s": 2}, "timed_out", "ran past timeout_s=2"),
        ("OneRankRaising", {"devices": 2}, "failed", "RuntimeError: rank 1 is cursed (rank 1)"),
    ],
)
def test_each_way_to_end_has_its_outcome_and_its_reason(
    launch, results, name, changes, outcome, reason
):
    row = only(launch(provoked(name, **changes)))

    assert row.outcome == outcome
    assert reason in row.reason
    if name == "Raising":
        assert "Traceback" in (results / row.log_path).read_text()
    if name == "Exploding":
        assert row.steps == 2


@pytest.mark.parametrize("bn_span", [128, None])
def test_out_of_memory_in_the_middle_goes_on_with_half_the_micro_batch(launch, results, bn_span):
    """20 micro-batches of 768 an epoch: the third epoch fails, and is made with 384."""
    row = only(launch(provoked("GreedyAboveHalf", epochs=3, micro_batch=768, bn_span=bn_span)))

    earlier = only(pd.read_parquet(results / "superseded/runs"))
    assert (earlier.outcome, earlier.micro_batch, earlier.epochs_completed) == (
        "out_of_memory",
        768,
        2,
    )
    assert (row.outcome, row.micro_batch, row.epochs_completed) == ("finished", 384, 3)
    assert row.reason == (
        "trained 3 epochs; micro_batch=384 since attempt 1 ran out of memory with micro_batch=768"
    )


def test_a_micro_batch_that_the_method_fixes_is_not_halved(launch):
    """SAM climbs by each 768 examples; by each 384 it would be another experiment."""
    sam = {"name": "sam", "rho": 0.05, "gradient_span": 768}

    row = only(launch(provoked("GreedyAboveHalf", epochs=3, perturbation=sam)))

    assert (row.outcome, row.micro_batch, row.attempt) == ("out_of_memory", 768, 1)


def test_half_a_micro_batch_divides_the_slices_of_a_delay(launch):
    """The largest half that divides the batch of 1,365 is 195, but a slice has 455."""
    sizes = {"batch": 1365, "micro_batch": 455, "bn_span": None, "gradient_delay": [0, 1, 2]}

    row = only(launch(provoked("GreedyAboveHalf", epochs=3, **sizes)))

    assert (row.outcome, row.micro_batch, row.attempt) == ("finished", 91, 2)


def test_a_killed_worker_is_preempted_and_goes_on_when_the_command_is_repeated(launch):
    first = only(launch(provoked("Suicidal")))
    again = only(launch(provoked("Suicidal")))

    assert first.outcome == "preempted"
    assert first.reason == "the worker was killed by SIGKILL from outside"
    assert (first.attempt, again.attempt) == (1, 2)


FIRST = "every micro-batch must show its 768 examples; the first"
EPOCH = "every epoch must have 2 optimizer steps of 7680 examples; epoch 1 had"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        pytest.param("ShortChanging", f"{FIRST} shows 767. ", id="short examples"),
        pytest.param("ShortWindow", f"{EPOCH} 2 steps of 5376 to 7680 ", id="short window"),
        pytest.param("Padded", f"{FIRST} shows 1000. ", id="padded"),
    ],
)
def test_a_batch_other_than_the_one_asked_for_fails_loudly(launch, data, found):
    """7,680 as 10 micro-batches of 768: one example less in each; the last window 3 short; filled.

    A short window is Lightning's way to end an epoch that is no whole number of windows (it divides
    the gradient by 10 all the same); filling up is DistributedSampler's way to give each rank as
    many examples.
    """
    node = {"_target_": f"provoked.{data}", "num_train_examples": 15360,
            "num_val_examples": 360, "validation_fold": 0}  # fmt: skip
    row = only(launch(provoked("Plain", data=node, micro_batch=768)))

    assert row.outcome == "failed"
    assert f"BatchContractBroken: {found}" in row.reason


def test_a_failed_run_is_tried_again_only_on_request(launch, short, results):
    cursed = provoked("Raising", batch=768)
    launch(cursed)
    ledger = Ledger(results)
    planned = plan([short(**cursed)], ledger)

    assert claim_tasks(planned, ledger, retry=None, rerun=None) == []
    (again,) = claim_tasks(planned, ledger, retry="failed", rerun=None)
    assert again.number == 2


def test_nothing_temporary_is_left(launch, results):
    launch({}, {"seed": 1, "devices": 2})

    names = [path.name for path in results.rglob("*")]
    assert not [name for name in names if name.endswith(".tmp") or name == "rendezvous"]
    assert not list((results / "active").iterdir())
    assert not list(results.rglob("*.ckpt"))
    assert not list(Path("/dev/shm").glob(f"sweeper-{os.getpid()}-*"))
