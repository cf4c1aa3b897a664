"""The name of a row's file says how its run ended, so that a listing is enough to know."""

from dataclasses import dataclass

from sweeper.spec.outcomes import Outcome

#: Files with this prefix hold many rows, merged from small files.
COMPACT_PREFIX = "compact-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """The current row of a run, as its file name says."""

    run_id: str
    attempt: int
    outcome: Outcome

    @property
    def runs_name(self) -> str:
        """Name of the row's file in runs."""
        return f"{self.run_id}-{self.attempt:03d}-{self.outcome}.parquet"

    @property
    def curves_name(self) -> str:
        """Name of the file in curves."""
        return f"{self.run_id}-{self.attempt:03d}.parquet"

    @classmethod
    def from_name(cls, name: str) -> "RowFile | None":
        """Parse a file name in runs; None for a foreign file."""
        parts = name.removesuffix(".parquet").split("-")
        try:
            run_id, attempt, outcome = parts
            return cls(run_id=run_id, attempt=int(attempt), outcome=Outcome(outcome))
        except ValueError:
            return None
