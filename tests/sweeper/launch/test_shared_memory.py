"""The folder in memory that runs share is the user's own, whatever others put beside it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.launch import shared_memory
from sweeper.launch.shared_memory import shared_folder

NOBODY = 65534


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """Stands for /dev/shm: everybody may write there."""
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path)
    return tmp_path


def test_a_file_of_such_a_name_stops_no_sweep(shm):
    (shm / "sweeper-x-shared").touch()
    (shm / "sweeper-y-shared").symlink_to(shm)

    with shared_folder() as path:
        assert path.is_dir()

    assert {left.name for left in shm.iterdir()} == {"sweeper-x-shared", "sweeper-y-shared"}


def test_it_is_private_and_its_name_is_never_the_same(shm):
    with shared_folder() as one, shared_folder() as other:
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
        assert one.stat().st_uid == os.geteuid()
        assert one != other

    assert not list(shm.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_what_a_dead_launcher_left_is_removed_if_it_is_ours(shm):
    ours, theirs = (shm / f"sweeper-1-{who}-shared" for who in ("us", "them"))
    for folder in (ours, theirs):
        folder.mkdir()
    os.chown(theirs, NOBODY, NOBODY)

    with shared_folder() as path:
        assert {left.name for left in shm.iterdir()} == {path.name, theirs.name}


def test_what_a_killed_launcher_left_is_removed_whatever_its_process_id_was(shm):
    """The lock ends with the process; its number may be another's, in another container."""
    script = f"""
import pathlib, sys, time
from sweeper.launch import shared_memory
shared_memory._SHM = pathlib.Path({str(shm)!r})
with shared_memory.shared_folder() as path:
    print(path, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        left = Path(launcher.stdout.readline().decode().strip())
        with shared_folder():
            assert left.is_dir()
        launcher.kill()

    with shared_folder() as path:
        assert list(shm.iterdir()) == [path]


def test_without_memory_to_write_to_it_lies_with_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path / "nowhere")
    monkeypatch.setattr(shared_memory.tempfile, "tempdir", str(tmp_path))

    with shared_folder() as path:
        assert path.parent == tmp_path
