"""What executions of the same runs must agree on, cut short or not."""

import pandas as pd

MEASURED = [
    "run_id",
    "outcome",
    "train_loss",
    "val_loss",
    "val_accuracy",
    "steps",
    "lr_series_hash",
]


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """What two executions of the same runs must agree on, to the last bit."""
    return rows[MEASURED].sort_values("run_id").reset_index(drop=True)


def assert_same(rows: pd.DataFrame, undisturbed: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(measured(rows), measured(undisturbed), check_exact=True)


def superseded(sweeps) -> pd.DataFrame:
    return pd.read_parquet(sweeps.results / "superseded/runs")
