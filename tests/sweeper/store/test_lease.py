"""Who holds a folder: the process itself on this machine, its heartbeat on another."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest

from sweeper.store import lease
from sweeper.store.lease import (
    EXPIRES_S,
    LEASE,
    claim,
    holds,
    is_held,
    lock,
    release,
    take_over,
    this_process,
    unlock,
)
from sweeper.store.publish import open_partial, publish_json


@pytest.fixture
def held_by(tmp_path):
    """A folder whose lease names this holder."""

    def write(holder):
        folder = tmp_path / "held"
        folder.mkdir()
        publish_json(folder / LEASE, asdict(holder))
        return folder

    return write


@pytest.fixture
def dead():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return replace(this_process(), pid=process.pid, born="12345")


def age(path, seconds):
    stat = path.stat()
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


@pytest.mark.parametrize(
    ("changes", "age_s", "is_live"),
    [
        pytest.param({}, 10 * EXPIRES_S, True, id="a living process of this machine"),
        pytest.param({"born": "1"}, 0, False, id="a process id in use again"),
        pytest.param({"host": "elsewhere", "pid": 1}, EXPIRES_S / 2, True, id="another machine"),
        pytest.param({"host": "elsewhere", "pid": 1}, EXPIRES_S + 5, False, id="no heartbeat"),
        # A container may share the machine's name, but its process ids mean other processes.
        pytest.param({"boot": "of a container", "pid": 1}, 0, True, id="a container"),
    ],
)
def test_a_holder_is_alive_if_its_process_is_and_elsewhere_if_its_heartbeat_is_fresh(
    held_by, changes, age_s, is_live
):
    folder = held_by(replace(this_process(), **changes))
    age(folder / LEASE, age_s)

    assert is_held(folder) == is_live


def test_a_dead_process_of_this_machine_holds_nothing_however_fresh_its_heartbeat(held_by, dead):
    assert not is_held(held_by(dead))


def test_a_lease_of_the_future_ages_from_when_it_is_seen(held_by):
    """A clock that was set back would have a dead holder live until it is as late again."""
    folder = held_by(replace(this_process(), host="elsewhere"))
    age(folder / LEASE, -1e6)

    assert is_held(folder)

    age(folder / LEASE, 2 * EXPIRES_S)
    assert not is_held(folder)


def test_a_folder_without_a_lease_is_held_while_it_is_young(tmp_path):
    assert is_held(tmp_path)

    age(tmp_path, EXPIRES_S + 5)
    assert not is_held(tmp_path)


def test_the_heartbeat_goes_on_while_the_process_is_kept_waiting(tmp_path):
    """As by the first import of torch over a network: the main thread waits for the heartbeat."""
    kept_waiting = (
        "import os, sys, threading; from pathlib import Path; from sweeper.store import lease;"
        "lease.HEARTBEAT_S = 0.02; folder = Path(sys.argv[1]); file = folder / lease.LEASE;"
        "lease.claim(folder); os.utime(file, (0, 0));\n"
        "while file.stat().st_mtime == 0: threading.Event().wait(0.05)"
    )
    command = [sys.executable, "-c", kept_waiting, str(tmp_path / "held")]

    subprocess.run(command, check=True, timeout=900)


def test_a_released_folder_has_no_lease_and_no_heartbeat(tmp_path):
    folder = tmp_path / "held"
    assert claim(folder)

    release(folder)

    assert list(folder.iterdir()) == []
    assert not claim(folder)


def test_a_lock_is_taken_over_from_a_dead_process_and_from_no_other(held_by, dead):
    folder = held_by(dead)

    assert lock(folder)
    assert holds(folder)
    assert not lock(folder)
    for _ in range(3):
        unlock(folder)
        assert not is_held(folder)
        assert not holds(folder)
        assert lock(folder)
    assert len(list(folder.iterdir())) < 4


def test_a_lock_without_a_readable_lease_is_taken_over_when_it_is_old(tmp_path):
    folder = tmp_path / "held"
    folder.mkdir()
    assert not lock(folder)
    age(folder, EXPIRES_S + 5)
    assert lock(folder)

    (claimed,) = folder.iterdir()
    (claimed / LEASE).write_text('{"host": "cut o')
    assert not lock(folder)
    age(claimed / LEASE, EXPIRES_S + 5)
    assert lock(folder)
    last = max(folder.iterdir())
    assert json.loads((last / LEASE).read_text()) == asdict(this_process())


def test_who_sleeps_past_its_lease_finds_its_claim_gone_when_it_wakes(held_by, monkeypatch):
    """It is not seen to live, being on another machine, and did not even write its lease yet."""
    folder = held_by(replace(this_process(), host="elsewhere"))
    age(folder / LEASE, EXPIRES_S + 5)
    real = lease.publish_json

    def sleep_past_the_lease(path, content):
        monkeypatch.setattr(lease, "publish_json", real)
        age(path.parent, EXPIRES_S + 5)
        assert take_over(folder)
        lease._held.clear()  # as of another process
        real(path, content)

    monkeypatch.setattr(lease, "publish_json", sleep_past_the_lease)

    assert take_over(folder)
    assert not holds(folder)
    assert is_held(folder)


def test_a_late_process_does_not_take_over_again_what_was_taken_over(held_by, dead, monkeypatch):
    """It looked when the holder was dead, and acts when another has already taken over."""
    folder = held_by(dead)

    def is_held_at_first(of):
        monkeypatch.setattr(lease, "is_held", is_held)
        assert lock(of)
        return False

    monkeypatch.setattr(lease, "is_held", is_held_at_first)

    assert not lock(folder)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["taken-001"]


def test_of_many_processes_one_takes_a_lock_over(held_by, dead):
    """All of them have seen that its holder is dead before the first one acts."""
    folder = held_by(dead)
    contender = (
        "import sys; from pathlib import Path; from sweeper.store import lease;"
        "real, seen = lease.is_held, iter([False]);"
        "lease.is_held = lambda folder: next(seen, real(folder));"
        "print('ready', flush=True); sys.stdin.readline();"
        "print(lease.lock(Path(sys.argv[1])), flush=True); sys.stdin.readline()"
    )
    contenders = [
        subprocess.Popen(
            [sys.executable, "-c", contender, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for one in contenders:
        assert one.stdout.readline() == "ready\n"
    for one in contenders:
        one.stdin.write("go\n")
        one.stdin.flush()

    won = [one.stdout.readline().strip() for one in contenders]
    for one in contenders:
        one.communicate("done\n", timeout=900)

    assert sorted(won) == ["False", "False", "False", "True"]


def test_processes_with_one_id_on_two_machines_disturb_each_other_nowhere(held_by):
    """As two threads are, which have one process id as well."""
    folder = held_by(replace(this_process(), host="elsewhere"))

    with ThreadPoolExecutor(2) as machines:
        held = list(machines.map(lambda _: is_held(folder), range(2_000)))
    assert all(held)

    with open_partial(folder / "note") as first:
        first.write_text("first")
        with open_partial(folder / "note") as second:
            second.write_text("second")
        assert (folder / "note").read_text() == "second"
    assert (folder / "note").read_text() == "first"


def test_a_folder_whose_place_was_moved_is_not_claimed(tmp_path):
    """What is begun in a results folder that is gone would look as if it were one."""
    with pytest.raises(FileNotFoundError):
        claim(tmp_path / "moved/attempts/0123456789ab/001")

    assert not (tmp_path / "moved").exists()
