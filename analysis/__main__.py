"""The command `python -m analysis`: figures, claims and reports from results folders."""

import sys

from analysis.cli import main

sys.exit(main(sys.argv[1:]))
