"""How well the times of runs were predicted."""

import pandas as pd

#: What this reads of the runs table.
COLUMNS = (
    "outcome", "attempt", "model", "device_kind", "wall_s", "predicted_s", "predicted_least_s",
    "predicted_most_s",
)  # fmt: skip


def prediction_errors(runs: pd.DataFrame) -> pd.DataFrame:
    """Predictions beside outcomes, for each model and device and for all of them.

    Args:
        runs: rows with `COLUMNS`; those that finished in one attempt count.

    Returns:
        A row for each model and device, and one for all: the number of runs, the median of
        ``|wall_s / predicted_s - 1|`` and of the same with its sign, the error of the sum, and the
        share of runs within bounds that are to hold 9 of 10.

    Raises:
        ValueError: if no such run was predicted.
    """
    ended = runs[(runs.outcome == "finished") & (runs.attempt == 1) & runs.predicted_s.notna()]
    ended = ended.drop_duplicates("wall_s")  # a point that is the training of another has its row
    if ended.empty:
        msg = (
            "results must hold runs whose time was predicted and that finished in one attempt; "
            f"got none of {len(runs)}. Runs are predicted where one of their kind has finished "
            "before, or after `sweeper plan --probe`."
        )
        raise ValueError(msg)
    groups = [
        ({"model": model, "device": device}, group)
        for (model, device), group in ended.groupby(["model", "device_kind"])
    ]
    return pd.DataFrame(
        [{**names, **_errors(group)} for names, group in [*groups, ({"model": "all"}, ended)]]
    ).fillna("")


def _errors(runs: pd.DataFrame) -> dict[str, float]:
    error = runs.wall_s / runs.predicted_s - 1
    is_within = runs.wall_s.between(runs.predicted_least_s, runs.predicted_most_s)
    return {
        "runs": len(runs),
        "median_error": error.abs().median(),
        "median_signed_error": error.median(),
        "error_of_sum": runs.wall_s.sum() / runs.predicted_s.sum() - 1,
        "within_bounds": is_within.mean(),
    }
