"""The command `python -m analysis`: figures, claims and reports from results folders."""

import sys

from analysis.cli import main
from sweeper.console.text import open_closed_streams

open_closed_streams()
sys.exit(main(sys.argv[1:]))
