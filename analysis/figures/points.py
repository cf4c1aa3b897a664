"""Runs into points: the replicates of a batch, warmup and lr rule as one row."""

import pandas as pd

from sweeper.spec.sentences import several

#: A point is all of these; its replicates differ only in seed.
POINT = ["global_batch", "warmup_epochs", "lr_rule"]


def points(runs: pd.DataFrame, measure: str = "val_accuracy") -> pd.DataFrame:
    """The replicates of each point, summarised.

    Runs that did not reach an end (out of memory, timed out, preempted, failed) have no measure
    and are only counted. Diverged runs are counted, and are not in the mean.

    Uses `outcome`, `seed`, the columns of `POINT` and the measure.

    Returns:
        One row per point: `mean`, `low`, `high` (lowest and highest replicate), `num_finished`,
        `num_diverged`, `num_other`.
    """
    finished = runs["outcome"] == "finished"
    diverged = runs["outcome"] == "diverged"
    counted = runs[POINT].assign(
        value=runs[measure].where(finished),
        finished=finished,
        diverged=diverged,
        other=~(finished | diverged),
    )
    return (
        counted.groupby(POINT, as_index=False, dropna=False)
        .agg(
            mean=("value", "mean"),
            low=("value", "min"),
            high=("value", "max"),
            num_finished=("finished", "sum"),
            num_diverged=("diverged", "sum"),
            num_other=("other", "sum"),
        )
        .sort_values(POINT, ignore_index=True)
    )


def reading_note(frame: pd.DataFrame) -> str:
    """How bands and marks are to be read, with the number of seeds and what is not drawn."""
    seeds = frame.loc[frame["num_finished"] > 0, "num_finished"]
    low, high = (int(seeds.min()), int(seeds.max())) if len(seeds) else (0, 0)
    counts = f"{low}" if low == high else f"{low} to {high}"
    note = (
        "One seed per point: no interval."
        if (low, high) == (1, 1)
        else (f"Line: mean over finished seeds ({counts} per point); band: lowest to highest seed.")
    )
    diverged, other = int(frame["num_diverged"].sum()), int(frame["num_other"].sum())
    if diverged:
        note += f" Red cross: diverged ({several(diverged, 'run')}), not in the mean."
    if other:
        runs = several(other, "run")
        note += f" Not drawn: {runs} without a result (out of memory, timed out, failed)."
    return note
