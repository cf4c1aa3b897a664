"""Points that share another run's training, with what that run measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

#: Columns taken from the run that was trained: they describe how it ran.
_AS_TRAINED = ("micro_batch", "world_size", "accumulation_steps", "guarantees")


def with_same(
    runs: pd.DataFrame, points: Sequence[Mapping[str, Any]], settled: Sequence[str]
) -> pd.DataFrame:
    """The runs, and a row for each noted point: its own settings, what was measured for it.

    A point that has a result of its own keeps it.

    Args:
        runs: one row per run; uses `run_id`, `outcome`.
        points: planned columns and `trained_as`.
        settled: outcomes that end a run for good.
    """
    has_result = dict(zip(runs["run_id"], runs["outcome"].isin(settled), strict=True))
    chosen: dict[str, Mapping[str, Any]] = {}
    for point in points:
        own, trained = has_result.get(point["run_id"]), has_result.get(point["trained_as"])
        replaces_nothing = own is None and point["run_id"] not in chosen
        if (trained and not own) or (trained is False and replaces_nothing):
            chosen[point["run_id"]] = point
    if not chosen:
        return runs
    sources = [str(point["trained_as"]) for point in chosen.values()]
    rows = runs.set_index("run_id", drop=False).loc[sources]
    planned = [name for name in runs.columns if name not in _AS_TRAINED]
    for name in planned:
        given = [point.get(name) for point in chosen.values()]
        values = zip(given, rows[name], strict=True)
        if any(value is not None for value in given):
            rows[name] = [own if own is not None else measured for own, measured in values]
    rest = runs[~runs["run_id"].isin(list(chosen))]
    return pd.concat([rest, rows.astype(runs.dtypes.to_dict())], ignore_index=True)


def trained_for(
    runs: pd.DataFrame, points: Sequence[Mapping[str, Any]], present: set[str]
) -> dict[str, str]:
    """The run that was trained, for each run that has no rows in a table but is such a point.

    Args:
        runs: as in `with_same`; uses `run_id`.
        points: as there.
        present: runs that have rows in the table.
    """
    missing = set(runs["run_id"]) - present
    return {
        point["run_id"]: point["trained_as"]
        for point in points
        if point["run_id"] in missing and point["trained_as"] in present
    }
