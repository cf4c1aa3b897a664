"""Anyone's table of runs is read by the words that the user says, or refused in a sentence."""

import numpy as np
import pandas as pd
import pytest

from analysis.tables.any_table import read_table

GOOD = "bs,eta,smooth loss\n8,0.1,2.5\n16,0.1,2.4\n32,0.1,2.6\n"
COLUMNS = "batch=bs lr=eta loss='smooth loss'"


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return write


def test_a_table_a_parquet_and_a_frame_are_read_alike(written, tmp_path):
    path, parquet, said = written(GOOD), tmp_path / "table.parquet", tmp_path / "columns.txt"
    frame = pd.read_csv(path)
    frame.to_parquet(parquet)
    said.write_text("# ours on the left\nbatch=bs lr=eta\nloss='smooth loss'\n")

    runs = [read_table(source, COLUMNS).runs for source in (path, parquet, frame)]

    assert runs[0].equals(runs[1])
    assert runs[0].equals(runs[2])
    assert runs[0].equals(read_table(path, str(said)).runs)
    assert runs[0]["val_loss"].tolist() == [2.5, 2.4, 2.6]
    assert read_table(path, COLUMNS, "batch=2048tokens").runs["global_batch"].tolist() == [
        16384, 32768, 65536,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (GOOD, "batch=etas loss='smooth loss'", "that is there, as batch=bs; got batch=etas. "
         "Did you mean eta? The columns are bs, eta, smooth loss. The words are batch, lr"),
        (GOOD, "batches=bs", "that is there, as batch=bs; got batches=bs. Did you "
         "mean batch? The columns are bs, eta, smooth loss. The words are batch, lr"),
        (GOOD, "batch=bs", "must have a batch, and a loss, a metric, or steps, examples or epochs "
         "to a target. The columns are bs, eta, smooth loss."),
        (GOOD.replace("0.1,2.4", "fast,2.4"), COLUMNS, "the column eta must hold numbers, or "
         "nothing; got fast in row 2 of 3, the first of 1. The columns are bs, eta,"),
        (GOOD.replace("8,0.1", "-8,0.1"), COLUMNS, "numbers above 0 and below 1e+18, or nothing; "
         "got -8 in row 1"),
        ("bs,loss\n.5,2\n.25,2\n.125,2\n", "batch=bs loss=loss", "a batch must be 1 or more; got "
         "0.5 in row 1 of 3, the first of 3. Say what 1 is, as --units batch=1e6tokens"),
        (GOOD.replace(",", ";"), COLUMNS, "must be separated by commas; got ';' between the "
         "columns bs, eta, smooth loss. Save it with commas."),
        ("", COLUMNS, "must be a whole CSV or parquet table; got: No columns to parse from file"),
        ("batch,loss\n8,\n,2\n", "", "must have runs; got none; left out: 2 rows with nothing in a "
         "column that is needed. The columns are batch, loss."),
        (GOOD, "batch=bs loss='smooth loss", "every quote must be closed; got batch=bs loss='sm"),
        ("batch,seed,steps\n8,0,3\n8,0,4", "", "each batch must have each seed once; got 8 in row "
         "2 of 2"),
        ("batch,loss,outcome\n8,2,fine\n", "", "an outcome must be finished or diverged, false or "
         "true, 0 or 1, or nothing; got fine in row 1"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_is_refused_with_its_columns(written, text, columns, message):
    with pytest.raises(ValueError, match="must") as refused:
        read_table(written(text), columns)

    assert message in str(refused.value)


def test_wild_rows_are_named_and_left_out():
    """The two of OpenEuroLLM's table, a batch of .95 and a loss of .0007, among 40 others."""
    runs = pd.DataFrame({"batch": np.tile([256.0, 512], 20), "loss": np.linspace(2.2, 3.1, 40)})
    runs.loc[3, "batch"], runs.loc[20, "loss"] = 0.95, 0.0007

    table = read_table(runs)

    assert len(table.runs) == 38
    assert table.said == [
        "left out as wild: row 4 (batch 0.95, loss 2.26923), a batch below 1",
        "left out as wild: row 21 (batch 256, loss 0.0007), better than the others by far",
    ]


def test_a_loss_that_is_infinite_has_diverged_and_of_a_run_the_last_row_counts():
    frame = pd.DataFrame({
        "run": [1, 1, 2, 3], "batch": 8, "loss": [9.0, 2.0, np.inf, np.nan],
        "outcome": [False, False, False, True],
    })  # fmt: skip

    runs = read_table(frame).runs

    assert runs["outcome"].tolist() == ["finished", "diverged", "diverged"]
    assert runs["val_loss"].tolist()[0] == 2.0
