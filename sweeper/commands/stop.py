"""`sweeper stop`: end the workers and SLURM jobs of a folder, or a run, once they have saved."""

import argparse
from collections.abc import Sequence

from sweeper.commands.status import add_names, find_named
from sweeper.console.printing import say
from sweeper.launch.queue.queue import Queue
from sweeper.launch.slurm.commands import cancel_waiting
from sweeper.launch.slurm.submissions import list_layouts
from sweeper.spec.outcomes import DONE
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt, Open, attempt_state
from sweeper.store.ledger import Ledger


def main(arguments: Sequence[str]) -> int:
    """Ask them to stop, without waiting until they have; ValueError if they are not there."""
    parser = argparse.ArgumentParser(prog="sweeper stop", description=__doc__)
    add_names(parser)
    ledger, run_id = find_named(parser.parse_args(arguments), "stop")
    if run_id:
        _stop_run(ledger, run_id)
    else:
        _stop_workers(ledger)
    return DONE


def _stop_run(ledger: Ledger, run_id: str) -> None:
    for queue in (Queue(ledger), *(layout.queue for layout in list_layouts(ledger))):
        queue.remove(run_id)
    last = ledger.last_attempt(run_id)
    attempt = Attempt.load(ledger, run_id, last) if last else None
    if attempt and attempt_state(ledger, run_id, last) is Open.HELD:
        attempt.request_graceful_stop()
        say(f"{run_id} is saved after its current step and ends; its sweep's command resumes it.")
    else:
        say(f"{run_id} is not running, and not queued any more.")


def _stop_workers(ledger: Ledger) -> None:
    queue, layouts = Queue(ledger), list_layouts(ledger)
    queue.ask_to_stop()
    cancelled = cancel_waiting({job for layout in layouts for job in layout.list_jobs()})
    left = queue.list_runs().union(*(layout.queue.list_runs() for layout in layouts))
    stay, them = ("stays", "it") if len(left) == 1 else ("stay", "them")
    say(
        f"The workers and jobs of {ledger.results} save their runs after the current step, and "
        f"end. {several(len(left), 'run')} {stay} queued; new workers resume {them}"
        f"{f', and the sweep submits {them} again' if cancelled else ''}."
    )
