"""`sweeper delete`: forget runs, so that the command that trained them trains them again."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from sweeper.commands.status import find_run
from sweeper.console.printing import say
from sweeper.spec.outcomes import DONE
from sweeper.store.attempt import Open, attempt_state
from sweeper.store.ledger import Ledger


def main(arguments: Sequence[str]) -> int:
    """Archive the rows of runs and remove their logs and checkpoints.

    ValueError, before anything is removed, if a run is not known, or is running.
    """
    parser = argparse.ArgumentParser(prog="sweeper delete", description=__doc__)
    parser.add_argument("runs", nargs="+", help="run ids, or their beginnings; `status` shows them")
    parser.add_argument("--results", default="results", help="their folder")
    options = parser.parse_args(arguments)
    ledger = Ledger(Path(options.results))
    found = {run: find_run(ledger, run) for run in options.runs}
    for run, run_id in found.items():
        last = ledger.last_attempt(run_id) if run_id else 0
        if last and attempt_state(ledger, run_id, last) is Open.HELD:
            why = f"A run must have ended; got {run}, which is running. Stop its sweep first."
        elif not run_id:
            why = f"A run must be named by its id; got {run}. `sweeper status` shows the ids."
        else:
            continue
        msg = f"Nothing was deleted.\n{why}"
        raise ValueError(msg)
    ledger.supersede(found.values())
    for run_id in found.values():
        shutil.rmtree(ledger.results / "attempts" / run_id)
        (ledger.results / "sharpness" / f"{run_id}.parquet").unlink(missing_ok=True)
        say(f"{run_id} deleted; its row is kept in {ledger.results / 'superseded'}.")
    return DONE
