"""The files of the tables: their folders, and what a name says of the rows in it."""

from dataclasses import dataclass

from sweeper.spec.outcomes import Outcome

#: Files with this prefix hold many rows, merged from small files.
COMPACT_PREFIX = "compact-"

#: The folders of a run's rows, in the order that they are published in: its own row last.
ROW_FOLDERS = ("metrics", "curves", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """The current row of a run, as its file name says: a listing is enough to know."""

    run_id: str
    attempt: int
    outcome: Outcome

    def name_in(self, table: str) -> str:
        """Name of its file in a table's folder."""
        outcome = f"-{self.outcome}" if table == "runs" else ""
        return f"{self.run_id}-{self.attempt:03d}{outcome}.parquet"

    @classmethod
    def from_name(cls, name: str) -> "RowFile | None":
        """Parse a file name in runs; None for a foreign file."""
        parts = name.removesuffix(".parquet").split("-")
        try:
            run_id, attempt, outcome = parts
            return cls(run_id=run_id, attempt=int(attempt), outcome=Outcome(outcome))
        except ValueError:
            return None
