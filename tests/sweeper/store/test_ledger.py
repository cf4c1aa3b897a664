"""What was measured of runs: columns of the tables, or what their modules logged."""

import subprocess

import pytest

from sweeper.store import publish
from sweeper.store.compaction import compact
from sweeper.store.ledger import Ledger
from sweeper.store.run_columns import git_commit
from sweeper.store.table_files import write_rows


@pytest.fixture
def ledger(tmp_path):
    """Two runs of three epochs that log no error in their second; the first was tried twice."""
    ledger = Ledger(tmp_path)
    ledger.prepare()
    ended = {"outcome": "finished", "reason": "trained", "train_s": 2.0}
    for run_id, attempt in (("a" * 12, 1), ("a" * 12, 2), ("b" * 12, 1)):
        errors = [{"val/rmse": 4.0 - epoch, "val_loss": 0.1 * epoch} for epoch in range(3)]
        del errors[1]["val/rmse"]
        curve = [{"epoch": i + 1, "step": i, "metrics": m} for i, m in enumerate(errors)]
        ledger.attempt_folder(run_id, attempt).mkdir(parents=True)
        ledger.publish({**ended, "run_id": run_id, "attempt": attempt}, curve)
    late = {
        "run_id": "a" * 12,
        "attempt": 3,
        "epoch": 4,
        "step": 8,
        "name": "val/rmse",
        "value": 9.0,
    }
    write_rows([late], tmp_path / "metrics" / f"{'a' * 12}-003.parquet")  # its row is not there yet
    return ledger


@pytest.mark.parametrize("is_merged", [False, True])
def test_what_a_module_logged_is_measured_as_columns_are(ledger, is_merged):
    if is_merged:
        assert compact(ledger.results) == 2
    names = ["train_s", "val/rmse", "val_loss", "val/mae"]

    rows = ledger.measured({"a" * 12}, names)

    row = {"outcome": "finished", "reason": "trained", "train_s": 2.0, "attempt": 2}
    logged = {"val/rmse": 2.0, "val_loss": 0.2, "val/mae": None}
    assert rows == {"a" * 12: {"run_id": "a" * 12, **row, **logged}}


def test_a_full_disk_is_said_to_be_full_for_the_file_that_found_it_so(tmp_path, monkeypatch):
    def full(*arguments, **settings):
        del arguments, settings
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    path = tmp_path / "runs" / "a.parquet"

    with pytest.raises(OSError, match=r"No space left on device: '.*/a.parquet'$"):
        write_rows([], path)


def test_a_file_that_cannot_be_flushed_is_named_and_not_published(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(publish, "flush_to_disk", fail)
    path = tmp_path / "released.json"

    with pytest.raises(OSError, match=f"Input/output error: '{path}'$"):
        publish.publish_json(path, {})

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [BlockingIOError(11, "full"), OSError(12, "no memory")])
def test_a_row_is_made_where_no_process_can_be_started_for_its_commit(monkeypatch, error):
    def refuse(*arguments, **settings):
        del arguments, settings
        raise error

    monkeypatch.setattr(subprocess, "run", refuse)

    assert git_commit.__wrapped__() is None
