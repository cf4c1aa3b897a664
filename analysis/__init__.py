"""Tables in, numbers and figures out. Never imports torch."""

from analysis.tables.load import UnreadFile, load_curves, load_runs

__all__ = ["UnreadFile", "load_curves", "load_runs"]
