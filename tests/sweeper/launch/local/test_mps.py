"""CUDA's Multi-Process Service, by a control program of our own: up for a sweep, down after it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeper.launch.local.mps import mps

CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then
    [ -z "$CUDA_VISIBLE_DEVICES" ] || exit 1
    [ FAILS = no ] || exit 1
    touch "$CUDA_MPS_PIPE_DIRECTORY/up"
    exit
fi
read -r word && [ "$word" = quit ] && rm "$CUDA_MPS_PIPE_DIRECTORY/up"
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A machine with the program: ``control(fails=True)`` for one that does not start."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def install(*, fails: bool = False) -> Path:
        tool = tmp_path / "bin/nvidia-cuda-mps-control"
        tool.parent.mkdir()
        tool.write_text(CONTROL.replace("FAILS", "yes" if fails else "no"))
        tool.chmod(0o755)
        return tmp_path / "mps-pipe/up"

    return install


def test_it_is_up_in_the_block_and_down_after_it(control, tmp_path, monkeypatch):
    up = control()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    with mps(tmp_path) as environment:
        assert environment == {
            "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps-pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "mps-log"),
        }
        assert up.exists()
    assert not up.exists()


def test_it_ends_with_its_launcher_however_that_ends(control, tmp_path):
    up = control()
    code = (
        "import pathlib, sys, time; from sweeper.launch.local.mps import mps\n"
        "with mps(pathlib.Path(sys.argv[1])): time.sleep(600)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    while not up.exists():
        time.sleep(0.01)

    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()

    while up.exists():
        time.sleep(0.01)


def test_without_the_program_or_if_it_does_not_start_there_is_none(control, tmp_path):
    with mps(tmp_path) as environment:
        assert environment == {}

    control(fails=True)
    with mps(tmp_path) as environment:
        assert environment == {}
