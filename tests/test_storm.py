"""Workers that are killed, stopped and put to sleep at random, and a disk that is full at times.

No run is lost, none ends twice. The clocks of the workers are hours apart.

Their runs take no time (tests/stub_worker.py), and each worker is a machine of its own: others know
of it by its heartbeat alone, as over a network. `make soak` (SWEEPER_STORMS=100) has many rounds.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from sweeper.launch.queue.queue import Queue
from sweeper.planning.plan import Task
from sweeper.spec.run_spec import run_spec
from sweeper.store.compaction import compact
from sweeper.store.ledger import Ledger
from sweeper.store.recovery import finish_abandoned

STORMS = int(os.environ.get("SWEEPER_STORMS", "5"))
STUB = Path(__file__).parent / "stub_worker.py"
RUNS, WORKERS, LEASE_S = 40, 5, 2.0
MEASURED = ["run_id", "outcome", "reason", "seed", "val_loss", "epochs_completed"]
CURVE = ["run_id", "epoch", "step", "val_loss"]


@pytest.fixture
def fill(config):
    """Queue the runs in a folder."""

    def queue_all(results):
        ledger = Ledger(results)
        ledger.prepare()
        specs = [run_spec(config(seed=n, batch=3840, micro_batch=3840)) for n in range(RUNS)]
        Queue(ledger).add([Task(spec=spec, number=1) for spec in specs], "0")
        return ledger

    return queue_all


def start(ledger, name, *words):
    command = [sys.executable, str(STUB), str(ledger.results), "--machine", name, *words]
    command += ["--lease-s", str(LEASE_S)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def tables(ledger):
    runs = pd.read_parquet(ledger.results / "runs").sort_values("run_id", ignore_index=True)
    curves = pd.read_parquet(ledger.results / "curves")
    return runs[MEASURED], curves[CURVE].sort_values(["run_id", "epoch"], ignore_index=True)


@pytest.fixture
def undisturbed(fill, tmp_path):
    ledger = fill(tmp_path / "calm")
    only = start(ledger, "only")
    said, _ = only.communicate(timeout=600)
    assert only.returncode == 0, said
    return tables(ledger)


@pytest.mark.slow
@pytest.mark.parametrize("storm", range(STORMS))
def test_runs_in_a_storm_end_once_each_as_in_one_process(fill, undisturbed, tmp_path, storm):
    luck = random.Random(storm)
    late = ["--late-s", "0.2"] if storm % 2 else []  # a stand-in for NFS
    full = tmp_path / "full"
    ledger = fill(tmp_path / "stormy")
    queue, ended, asleep = Queue(ledger), [], []
    workers = []
    for turn in range(30):
        while len(workers) < WORKERS:
            clock = ["--clock-s", str(3600 * luck.randint(-5, 5)), "--full", str(full)]
            name = f"m{turn}-{len(workers)}"
            workers.append(start(ledger, name, "--epoch-s", "0.02", *clock, *late))
        time.sleep(luck.uniform(0.1, 0.5))
        if luck.random() < 0.2:
            full.touch()
            time.sleep(luck.uniform(0.1, 1.0))
            full.unlink()
        if not queue.list_runs():
            break
        victim = luck.choice(workers)
        number = luck.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
        victim.send_signal(number)
        workers.remove(victim)
        (asleep if number == signal.SIGSTOP else ended).append(victim)
        if asleep and luck.random() < 0.4:
            woken = asleep.pop(luck.randrange(len(asleep)))
            woken.send_signal(signal.SIGCONT)
            workers.append(woken)
    for worker in asleep:
        worker.send_signal(signal.SIGCONT)
    last = start(ledger, "last")
    for worker in [*workers, *asleep, last]:
        said, _ = worker.communicate(timeout=600)
        assert worker.returncode == 0, said
    for worker in ended:
        said, _ = worker.communicate(timeout=600)
        assert worker.returncode in (0, 75, -signal.SIGKILL, -signal.SIGTERM), said

    assert not queue.list_runs()
    assert len(ledger.ended()) == RUNS
    if late:  # who looks just before a rename may see what was some time ago
        finish_abandoned(ledger)
    rows, curves = tables(ledger)
    pd.testing.assert_frame_equal(rows, undisturbed[0])
    pd.testing.assert_frame_equal(curves, undisturbed[1])
    finish_abandoned(ledger)
    compact(ledger.results)
    assert len(tables(ledger)[0]) == RUNS
    assert not list((ledger.results / "active").iterdir())
    shutil.rmtree(ledger.results)
