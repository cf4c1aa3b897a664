"""The command `python -m analysis`: figures, claims and reports from results folders."""

import signal
import sys

from sweeper.console.printing import note, open_closed_streams
from sweeper.console.results_folder import spell_folder
from sweeper.spec.outcomes import INTERRUPTED

open_closed_streams()
try:
    from analysis.cli import main  # pandas: Ctrl-C may come meanwhile

    sys.exit(main(spell_folder("analysis", sys.argv[1:])))
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C finds nothing left to stop
    note("Stopped.")
    sys.exit(INTERRUPTED)
