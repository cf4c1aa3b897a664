"""A worker of `sweeper work` whose runs take no time: a line, a checkpoint and a record each.

    python tests/stub_worker.py RESULTS [--epoch-s 0.01] [--machine NAME] [--lease-s 60]

With --epoch-s inf a run waits after its first epoch until it is stopped; --clock-s sets its clock
fast; --full MARKER is a disk that is full while the marker is there.

As another machine, its processes cannot be seen, and it is presumed dead after its lease. Without
torch, hundreds of them fit on a machine.
"""

import argparse
import errno
import io
import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

from sweeper.launch import ranks as rank_processes
from sweeper.launch.local import launcher
from sweeper.launch.local.slots import Machine
from sweeper.launch.queue import queue_worker
from sweeper.launch.queue.queue import Queue
from sweeper.launch.queue.queue_worker import FirstSignal, Worker
from sweeper.launch.ranks import Running, worker_failure
from sweeper.store import lease
from sweeper.store.ledger import Ledger

EPOCHS = 3


class Stub:
    """The ranks of a run: each look at them is an epoch, whose loss follows from run and epoch."""

    sentinel = None

    def __init__(self, attempt, epoch_s=0.0):
        self._attempt, self._epoch_s, self._code = attempt, epoch_s, None
        self._rows = []
        if attempt.checkpoint.exists():
            with ZipFile(attempt.checkpoint) as file:
                self._rows = json.loads(file.read("rows"))
            self._report(self._rows)

    @property
    def exitcode(self):
        if self._code is None:
            self._code = self._train()
        return self._code

    def _train(self):
        folder = self._attempt.folder
        if len(self._rows) == EPOCHS:
            record = {"outcome": "finished", "reason": f"trained {EPOCHS} epochs"}
            (folder / "record-0.json").write_text(json.dumps(record))
            return 0
        if self._rows and self._attempt.has_graceful_stop:
            record = {"outcome": "preempted", "reason": f"after epoch {len(self._rows)}"}
            (folder / "record-0.json").write_text(json.dumps(record))
            return 0
        if self._rows and self._epoch_s == math.inf:
            return None  # until it is stopped
        time.sleep(self._epoch_s if self._epoch_s < math.inf else 0.0)
        epoch = len(self._rows) + 1
        seed = self._attempt.spec.config.seed
        row = {"epoch": epoch, "step": epoch, "elapsed_s": 1.0, "val_loss": seed + 1 / epoch}
        self._rows.append(row)
        partial = folder / f"checkpoint.{folder.name}.tmp"
        with ZipFile(partial, "w") as file:
            file.writestr("rows", json.dumps(self._rows))
        partial.replace(self._attempt.checkpoint)
        self._report(self._rows[-1:])
        return None

    def _report(self, rows):
        with (self._attempt.folder / "progress.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def kill(self):
        self._code = -9 if self._code is None else self._code

    def join(self, timeout=None):
        del timeout


class StubRanks:
    """Places for stubs."""

    def __init__(self, epoch_s=0.0, make=Stub):
        self._epoch_s, self._make = epoch_s, make

    def check(self, spec):
        del spec

    def start(self, attempt, environment):
        del environment
        stub = self._make(attempt, self._epoch_s)
        return Running(attempt=attempt, processes=[stub], failure=worker_failure)


def work(results, signals=None, say=print, ranks=None):
    """Be a worker; its exit code."""
    ledger = Ledger(Path(results))
    queue = Queue(ledger)
    worker = Worker(ledger, queue, signals or FirstSignal(), say)
    worker._ranks = ranks or StubRanks()
    return worker.work(Machine(cores=1, jobs=1))


def forget_torch():
    """Have runs start without a fork server, and be looked at without a pause."""
    launcher.open_fork_server = lambda targets: None
    rank_processes._TICK_S = 0.001


def see_names_late(seconds):
    """Leave names out of listings until they are so old, as network file systems do.

    What is done in a folder meanwhile does not make its name younger.
    """
    real, now, made_at = os.listdir, time.time, dict[int, float]()

    def listdir(path="."):
        seen_s, names = now() - seconds, []
        for name in real(path):
            with suppress(OSError):
                found = Path(path, name).stat()
                if made_at.setdefault(found.st_ino, found.st_ctime) < seen_s:
                    names.append(name)
        return names

    os.listdir = listdir


def fill_disk_while(marker, results):
    """Have all that would be written to the results fail while there is a marker."""
    writes = {"open": lambda mode: {*"wax+"} & {*str(mode)}, "mkdir": lambda _: True}

    def refuse(function):
        real, is_write = getattr(holders[function], function), writes[function]

        def act(path, mode="r", *arguments, **named):
            if is_write(mode) and str(path).startswith(results) and marker.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            given = (mode, *arguments) if function == "open" or mode != "r" else arguments
            return real(path, *given, **named)

        setattr(holders[function], function, act)

    holders = {"open": io, "mkdir": os}
    for function in writes:
        refuse(function)
    queue_worker._TRY_AGAIN_S = 0.3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results")
    parser.add_argument("--epoch-s", type=float, default=0.0)
    parser.add_argument("--machine", default="")
    parser.add_argument("--lease-s", type=float, default=60.0)
    parser.add_argument("--late-s", type=float, default=0.0)
    parser.add_argument("--clock-s", type=float, default=0.0)
    parser.add_argument("--full", type=Path)
    options = parser.parse_args()
    if options.full:
        fill_disk_while(options.full, options.results)
    if options.late_s:
        see_names_late(options.late_s)
    if options.clock_s:
        now = time.time
        time.time = lambda: now() + options.clock_s
    forget_torch()
    lease.EXPIRES_S, lease.HEARTBEAT_S = options.lease_s, options.lease_s / 12
    if options.machine:
        me = replace(lease.this_process(), host=options.machine, boot=options.machine)
        lease.this_process = lambda: me
    signals = FirstSignal()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signals.record)
    sys.exit(work(options.results, signals, print, StubRanks(options.epoch_s)))


if __name__ == "__main__":
    main()
