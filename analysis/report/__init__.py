"""An interactive page about the runs of one or more results folders."""

from analysis.report.data import report_data
from analysis.report.page import page

__all__ = ["page", "report_data"]
