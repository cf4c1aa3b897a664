"""`sweeper logs RUN_ID`: what a run's latest attempt printed; -f follows it until it ends.

Most runs print nothing: then how far it is.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from sweeper.commands.status import describe_state, find_named
from sweeper.console.live import RunState
from sweeper.console.printing import say
from sweeper.spec.outcomes import DONE
from sweeper.store.attempt import Attempt, Open, attempt_state
from sweeper.store.ledger import Ledger

_LOOK_EVERY_S, _LINE_EVERY_S = 0.5, 5.0


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
    position, is_open, look_at = 0, True, 0.0
    while is_open:
        is_open = options.follow and attempt_state(ledger, run_id, number) is Open.HELD
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                new = file.read()
            position += len(new)
            sys.stdout.write(new.decode(errors="replace"))
            sys.stdout.flush()
        if not position and (time.monotonic() >= look_at or not is_open):
            look_at = time.monotonic() + _LINE_EVERY_S
            say(_describe_progress(ledger, run_id, number))
        if is_open:
            time.sleep(_LOOK_EVERY_S)
    if not position:
        others = [str(other) for other in path.parent.glob("*.txt") if other.stat().st_size]
        where = f" See {', '.join(others)}." if others else ""
        say(f"{path} is empty or missing: the attempt has printed nothing.{where}")
    return DONE


def _describe_progress(ledger: Ledger, run_id: str, number: int) -> str:
    """How an attempt ended, or how far it is: `running  epoch=1/30 val_accuracy=0.9123`."""
    if (attempt := Attempt.load(ledger, run_id, number)) is None:
        return f"{run_id} has not begun."
    run = RunState(attempt.spec, status="running", attempt=attempt)
    run.read_progress()
    line, state = run.line, describe_state(attempt_state(ledger, run_id, number))
    metric = line.metric_text and f"{line.metric_name}={line.metric_text}"
    return "  ".join(filter(None, (state, line.progress, metric)))
