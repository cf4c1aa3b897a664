"""`sweeper logs RUN_ID`: what a run's latest attempt printed; -f follows it until it ends."""

import argparse
import sys
import time
from collections.abc import Sequence

from sweeper.commands.status import find_named
from sweeper.console.printing import say
from sweeper.spec.outcomes import DONE
from sweeper.store.attempt import Open, attempt_state

_LOOK_EVERY_S = 0.5


def main(arguments: Sequence[str]) -> int:
    """Print a log; return the exit code; ValueError if there is no such run."""
    parser = argparse.ArgumentParser(prog="sweeper logs", description=__doc__)
    parser.add_argument("what", metavar="RUN_ID", help="its id, or how that begins")
    parser.add_argument("--results", default="results", help="folder to look for it in")
    parser.add_argument("--rank", type=int, default=0, help="of the run's processes (0)")
    parser.add_argument("-f", "--follow", action="store_true", help="until the attempt has ended")
    options = parser.parse_args(arguments)
    ledger, run_id = find_named(options, "logs")
    number = ledger.last_attempt(run_id) if run_id else 0
    name = f"log-rank{options.rank}.txt" if options.rank else "log.txt"
    path = ledger.attempt_folder(run_id, number) / name
    position, is_open = 0, True
    while is_open:
        is_open = options.follow and attempt_state(ledger, run_id, number) is Open.HELD
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                new = file.read()
            position += len(new)
            sys.stdout.write(new.decode(errors="replace"))
            sys.stdout.flush()
        if is_open:
            time.sleep(_LOOK_EVERY_S)
    if not position:
        say(f"{path} is empty or missing: the attempt has printed nothing.")
    return DONE
