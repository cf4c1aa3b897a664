"""Who holds an attempt: told by the process on this machine, by the heartbeat on another."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sweeper.store import lease
from sweeper.store.lease import EXPIRES_S, hold, is_held, let_go, this_process


@pytest.fixture
def owned(tmp_path):
    """Write an owner file into a folder; its path."""

    def write(owner):
        path = tmp_path / "owner.json"
        owner.write(path)
        return path

    return write


def aged(path, seconds):
    stat = path.stat()
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def test_a_living_process_of_this_machine_holds_however_old_its_heartbeat(owned):
    path = owned(this_process())
    aged(path, 10 * EXPIRES_S)

    assert is_held(path, path.parent)


def test_a_dead_process_of_this_machine_holds_nothing_however_fresh_its_heartbeat(owned):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()

    path = owned(replace(this_process(), pid=dead.pid, born="12345"))

    assert not is_held(path, path.parent)


def test_a_process_id_used_anew_is_not_the_owner(owned):
    path = owned(replace(this_process(), born="1"))

    assert not is_held(path, path.parent)


def test_on_another_machine_a_fresh_heartbeat_holds(owned):
    path = owned(replace(this_process(), host="elsewhere", pid=1))
    aged(path, EXPIRES_S / 2)

    assert is_held(path, path.parent)


def test_on_another_machine_silence_lets_go(owned):
    path = owned(replace(this_process(), host="elsewhere", pid=1))
    aged(path, EXPIRES_S + 5)

    assert not is_held(path, path.parent)


def test_an_attempt_whose_owner_has_not_written_yet_is_held_while_it_is_young(tmp_path):
    assert is_held(tmp_path / "owner.json", tmp_path)

    aged(tmp_path, EXPIRES_S + 5)
    probe = tmp_path / "owner.json"
    assert not is_held(probe, tmp_path)


def test_a_container_of_this_machine_is_another_machine(owned):
    """It may share the machine's name, but its process ids mean other processes."""
    me = this_process()
    path = owned(replace(me, boot=me.boot + " of a container", pid=1))

    assert is_held(path, path.parent)


def test_the_heart_beats_while_the_process_is_kept_waiting(tmp_path):
    """As by the first import of torch over a network."""
    path = tmp_path / "owner.json"
    kept_waiting = (
        "import os, sys, time; from pathlib import Path; from sweeper.store import lease;"
        "lease.HEARTBEAT_S = 0.02; path = Path(sys.argv[1]);"
        "lease.hold(path); os.utime(path, (0, 0));"
        "time.sleep(0.5)"
    )

    subprocess.run([sys.executable, "-c", kept_waiting, str(path)], check=True)

    assert path.stat().st_mtime > 0


def test_who_lets_go_beats_no_more(tmp_path):
    path = tmp_path / "owner.json"

    hold(path)
    let_go(path)

    assert not path.exists()
    assert path not in lease._held
