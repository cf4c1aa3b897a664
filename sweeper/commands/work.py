"""`sweeper work results=FOLDER`: train what `hydra/launcher=queue` has queued, until none is left.

Start it in your project's folder, on as many machines as you like that see the results folder.
"""

import argparse
import signal
from collections.abc import Sequence

from sweeper.commands.refusals import CommandParser, refuse
from sweeper.console.printing import say, whole_number
from sweeper.console.results_folder import check_folder
from sweeper.launch.local.free_gpus import LEFT_OUT, leave_occupied
from sweeper.launch.local.slots import inspect_machine
from sweeper.launch.queue.queue import Queue
from sweeper.launch.queue.queue_worker import FirstSignal, Worker
from sweeper.spec.outcomes import DONE
from sweeper.store.ledger import Ledger

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def main(arguments: Sequence[str]) -> int:
    """Be a worker; return the exit code; ValueError if there is no folder."""
    parser = CommandParser(prog="sweeper work", description=__doc__)
    parser.add_argument(
        "results",
        nargs="?",
        default="results",
        help="folder with the queue (results)",
    )
    parser.add_argument(
        "--for", dest="for_s", type=_duration, default=0, help="save and stop after 90s, 30m, 4h"
    )
    parser.add_argument(
        "--jobs", type=whole_number(1, 1024), help="runs at a time (as many as fit)"
    )
    parser.add_argument("--runs-per-gpu", type=whole_number(1, 64), default=1, help="(1)")
    options = parser.parse_args(arguments)
    check_folder(options.results)
    signals = FirstSignal()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signals.record)
    signal.alarm(options.for_s)
    try:
        ledger = Ledger.from_setting(options.results)
        queue = Queue(ledger)
        if not queue.folder.is_dir() or next(queue.walk(), None) is None:
            say(f"No run is queued in {ledger.results}; hydra/launcher=queue queues them.")
            return DONE
        ledger.prepare()
        machine = inspect_machine(jobs=options.jobs or "auto", runs_per_gpu=options.runs_per_gpu)
        machine, occupied = leave_occupied(machine)
        if occupied and not machine.gpus:
            msg = f"a GPU must be free; others use {occupied}. Start the worker when one is."
            raise ValueError(msg)
        if occupied:
            say(f"{LEFT_OUT}: {occupied}.")
        return Worker(ledger, queue, signals, say).work(machine)
    except ValueError as error:
        return refuse(error)


def _duration(text: str) -> int:
    if text[:-1].isdecimal() and text[-1:] in _UNIT_S:
        return int(text[:-1]) * _UNIT_S[text[-1]]
    msg = f"it must be a number with s, m, h or d, such as 4h; got {text!r}"
    raise argparse.ArgumentTypeError(msg)
