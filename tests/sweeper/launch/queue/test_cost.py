"""What a queued run costs its file system does not grow with the number of runs, or of workers."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from sweeper.launch.queue import queue_worker

#: Audited by Python itself, whoever calls them.
TOUCHING = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.chmod"}


class Counted:
    """Files touched and entries listed below a folder, counted while it is on."""

    def __init__(self):
        self.folder, self.counts = None, Counter()
        sys.addaudithook(self._see)  # for good: there is no way to remove one

    def _see(self, event, arguments):
        if self.folder and event in TOUCHING and self.folder in str(arguments[0]):
            self.counts["touched"] += 1

    def listing(self, function):
        def count(path="."):
            entries = list(function(path))
            if self.folder and self.folder in str(path):
                self.counts["listed"] += len(entries)
            return entries if function is os_listdir else Entries(entries)

        return count


class Entries(list):
    """As `os.scandir` returns them."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass


os_listdir, os_scandir = os.listdir, os.scandir


@pytest.fixture(scope="module")
def counted():
    return Counted()


@pytest.fixture
def cost(counted, queued, train, ledger, monkeypatch):
    """Files touched and entries listed per run of so many, of which one worker trains them all."""
    monkeypatch.setattr(os, "listdir", counted.listing(os_listdir))
    monkeypatch.setattr(os, "scandir", counted.listing(os_scandir))

    def measure(runs, first):
        queued(runs, first)
        counted.folder, counted.counts = str(ledger.results), Counter()
        try:
            assert train()[0] == 0
        finally:
            counted.folder = None
        return {name: count / runs for name, count in counted.counts.items()}

    return measure


def test_a_run_costs_as_much_after_many_others(cost, monkeypatch):
    """Fifteen runs in a new folder, then in one of eight times as many rows and attempts."""
    monkeypatch.setattr(queue_worker, "MERGE_EVERY", 10**15)
    before = cost(15, 0)
    cost(100, 15)
    after = cost(15, 115)

    assert before["listed"] > 5
    assert before["touched"] > 20
    assert after["listed"] < before["listed"] * 1.1 + 1
    assert after["touched"] < before["touched"] * 1.1 + 1


def test_a_run_of_many_costs_as_much_as_one_of_few(cost):
    few, many = cost(15, 0), cost(120, 15)

    assert many["listed"] < few["listed"] * 1.5 + 5
    assert many["touched"] < few["touched"] * 1.5 + 5


def test_a_worker_that_looks_in_many_runs_of_others_tries_few(queued, ledger, counted):
    """Those that it lists at once do not grow with the queue, beyond a folder of 256."""
    queue = queued(1000)
    first = [next(queue.walk()) for _ in range(8)]

    assert len(set(first)) > 4
    counted.folder, counted.counts = str(Path(ledger.results)), Counter()
    patched = os.listdir
    os.listdir = counted.listing(os_listdir)
    next(queue.walk())
    os.listdir, counted.folder = patched, None
    assert counted.counts["listed"] < 256 + 64 + 1000 / 256 * 3
