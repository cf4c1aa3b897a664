"""How well time and memory of runs were predicted."""

import math

import pandas as pd

#: What this reads of the runs table.
COLUMNS = (
    "outcome", "attempt", "model", "device_kind", "wall_s", "predicted_s", "predicted_least_s",
    "predicted_most_s", "peak_memory_gib", "predicted_memory_gib",
)  # fmt: skip


def prediction_errors(runs: pd.DataFrame) -> pd.DataFrame:
    """Errors of predictions, for each model and device and for all of them.

    Runs that finished in their first attempt count.

    Returns:
        A row for each model and device, and for all: the number of runs, the median of
        ``|wall_s / predicted_s - 1|`` and of the same with its sign, the error of the sum, the
        share of runs within bounds that should hold 9 of 10, and the median of
        ``|peak_memory_gib / predicted_memory_gib - 1|``; each over the runs with that prediction.

    Raises:
        ValueError: if no such run was predicted.
    """
    is_predicted = runs.predicted_s.notna() | runs.predicted_memory_gib.notna()
    ended = runs[(runs.outcome == "finished") & (runs.attempt == 1) & is_predicted]
    if ended.empty:
        msg = (
            "results must hold runs whose time or memory was predicted and that finished in "
            f"their first attempt; got none of {len(runs)}. A run is predicted if a run of the "
            "same kind had finished before its sweep began, or after `sweeper plan --probe`."
        )
        raise ValueError(msg)
    groups = [
        ({"model": model, "device": device}, group)
        for (model, device), group in ended.groupby(["model", "device_kind"])
    ]
    return pd.DataFrame(
        [{**names, **_errors(group)} for names, group in [*groups, ({"model": "all"}, ended)]]
    ).fillna({"device": ""})


def _errors(runs: pd.DataFrame) -> dict[str, float]:
    timed = runs[runs.predicted_s.notna()]
    error = timed.wall_s / timed.predicted_s - 1
    is_within = timed.wall_s.between(timed.predicted_least_s, timed.predicted_most_s)
    predicted_s, memory = timed.predicted_s.sum(), runs.peak_memory_gib / runs.predicted_memory_gib
    return {
        "runs": len(runs),
        "median_error": error.abs().median(),
        "median_signed_error": error.median(),
        "error_of_sum": timed.wall_s.sum() / predicted_s - 1 if predicted_s else math.nan,
        "within_bounds": is_within.mean(),
        "median_memory_error": (memory - 1).abs().dropna().median(),
    }
