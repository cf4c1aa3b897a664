"""What the columns of the tables mean."""

import pandas as pd

from sweeper.store.schema import TABLES


def columns(table: str = "runs") -> pd.DataFrame:
    """The columns of a table of a results folder.

    Args:
        table: runs, curves or metrics.

    Returns:
        One row per column, by its name: `type` and `meaning`.

    Raises:
        ValueError: if there is no such table.
    """
    if table not in TABLES:
        msg = f"table must be one of {', '.join(sorted(TABLES))}; got {table}."
        raise ValueError(msg)
    rows = [(name, str(kind), meaning) for name, (kind, meaning) in TABLES[table].items()]
    return pd.DataFrame(rows, columns=["column", "type", "meaning"]).set_index("column")
