"""The folder in memory that runs share is the user's own, whatever others put beside it."""

import os
import stat

import pytest

from sweeper.launch import shared_memory
from sweeper.launch.shared_memory import shared_folder

NOBODY, DEAD = 65534, 999_999_999


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """Stands for /dev/shm: everybody may write there."""
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["sweeper-x-shared", "sweeper-99999999999999999999-shared", "sweeper--shared"]
)
def test_a_folder_of_such_a_name_stops_no_sweep(name, shm):
    (shm / name).mkdir()

    with shared_folder() as path:
        assert path.is_dir()

    assert [left.name for left in shm.iterdir()] == [name]


def test_it_is_private_and_its_name_is_never_the_same(shm):
    with shared_folder() as one, shared_folder() as other:
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
        assert one.stat().st_uid == os.geteuid()
        assert one != other

    assert not list(shm.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_what_a_dead_launcher_left_is_removed_if_it_is_ours(shm):
    ours, theirs = (shm / f"sweeper-{DEAD}-{who}-shared" for who in ("us", "them"))
    for folder in (ours, theirs):
        folder.mkdir()
    os.chown(theirs, NOBODY, NOBODY)

    with shared_folder() as path:
        assert {left.name for left in shm.iterdir()} == {path.name, theirs.name}


def test_without_memory_to_write_to_it_lies_with_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "_SHM", tmp_path / "nowhere")
    monkeypatch.setattr(shared_memory.tempfile, "tempdir", str(tmp_path))

    with shared_folder() as path:
        assert path.parent == tmp_path
