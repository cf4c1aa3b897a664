"""Tables of examples to a target that anyone published: a batch, a seed and what it took."""

from pathlib import Path

import pandas as pd

#: Columns of which a table has one: how much training reached the target.
MEASURES = ("examples_to_target", "steps_to_target", "epochs_to_target")
_LARGEST = 1e18  # squares of larger ones overflow


def read_reached(path: Path) -> tuple[pd.DataFrame, str]:
    """Read a CSV or parquet table with a row per batch and seed.

    It has `global_batch`, `seed` and one of `MEASURES`, empty where the target was not reached;
    epochs are examples up to a factor, which no estimate of a batch depends on. Other columns stay.

    Raises:
        ValueError: for a file that is no such table, or a seed that is there twice.

    Returns:
        The table as `to_target` returns it, and the unit of its examples: examples or epochs.
    """
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ValueError as error:  # of pandas, Arrow and codecs: without the path
        why = str(error).splitlines()[0].rstrip(".")
        msg = f"{path} must be a whole CSV or parquet table; got: {why}. Save it again."
        raise ValueError(msg) from error
    measure = next((name for name in MEASURES if name in frame), "")
    keys = ["global_batch", "seed"]
    if not measure or not {*keys} <= {*frame}:
        msg = (
            f"{path} must have the columns global_batch, seed and {' or '.join(MEASURES)}; got "
            f"{', '.join(map(str, frame))}. Rename its columns."
        )
        raise ValueError(msg)
    batches, values = (pd.to_numeric(frame[c], errors="coerce") for c in ("global_batch", measure))
    is_number = [c.between(0, _LARGEST, inclusive="neither") for c in (batches, values)]
    is_bad = ~is_number[0] | frame[measure].notna() & ~is_number[1]
    is_bad |= frame.duplicated(keys)
    if is_bad.any():
        shown = ", ".join(f"{c} {frame.loc[is_bad, c].iloc[0]}" for c in [*keys, measure])
        msg = (
            f"{path} must have numbers above 0 and below {_LARGEST:g}, once for each batch and "
            f"seed; got {shown}. Leave {measure} empty where the target was not reached."
        )
        raise ValueError(msg)
    examples = values * batches if measure == "steps_to_target" else values
    reached = frame.assign(examples_to_target=examples, reached_target=examples.notna())
    reached = reached.drop(columns=[c for c in MEASURES[1:] if c in frame])
    return reached, "epochs" if measure == "epochs_to_target" else "examples"
