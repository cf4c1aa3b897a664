"""Who holds an attempt: told by the process on this machine, by the heartbeat on another."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sweeper.owner import EXPIRES_S, is_held, this_process


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
