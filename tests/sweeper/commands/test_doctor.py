"""The doctor: each check finds what it is there for, and says what to do."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.commands.checks.cluster import config_checks, job_checks, partition_checks
from sweeper.commands.checks.finding import Verdict
from sweeper.commands.checks.folders import file_system, folder_checks, shared_check
from sweeper.commands.checks.machine import (
    interface_checks,
    python_check,
    shared_memory_check,
    torch_checks,
)

TORCH = {"version": "2.15", "cuda": "13.2", "available": True, "count": 2, "gloo": True,
         "nccl": True}  # fmt: skip


def verdicts(findings) -> dict[str, Verdict]:
    return {finding.what: finding.verdict for finding in findings}


def test_the_command_looks_at_everything_and_leaves_nothing_behind(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "doctor", str(tmp_path / "results"), "--json"],
        text=True,
        capture_output=True,
        check=False,
    )

    found = {line["what"]: line["verdict"] for line in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {"Python", "torch", "GPUs", "rename", "claims", "heartbeats", "disk"} <= set(found)
    assert found["torch"] == found["rename"] == found["claims"] == found["heartbeats"] == "good"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("version", "verdict"),
    [((3, 10), Verdict.BROKEN), ((3, 11), Verdict.GOOD), ((3, 14), Verdict.BROKEN)],
)
def test_python_is_3_11_to_3_13(version, verdict):
    assert python_check(version).verdict == verdict


def test_a_torch_that_does_not_start_is_told_with_its_last_words():
    (found,) = torch_checks("ImportError: libcudart.so.13", devices=1, driver="595.1")

    assert found.verdict == Verdict.BROKEN
    assert "ImportError: libcudart.so.13" in found.found


@pytest.mark.parametrize(
    ("torch", "devices", "driver", "verdict"),
    [
        (TORCH, 2, "595.1", Verdict.GOOD),
        (TORCH, 4, "595.1", Verdict.BROKEN),  # fewer GPUs than ranks
        (TORCH | {"available": False}, 1, "470.1", Verdict.BROKEN),  # driver older than CUDA
        (TORCH | {"available": False}, 4, None, Verdict.GOOD),  # a machine without GPUs
    ],
)
def test_gpus_are_compared_with_the_driver_and_the_devices_asked(torch, devices, driver, verdict):
    assert verdicts(torch_checks(torch, devices=devices, driver=driver))["GPUs"] == verdict


def test_an_interface_that_is_not_here_is_found():
    found = verdicts(interface_checks({"NCCL_SOCKET_IFNAME": "ib77"}, hostname="localhost"))

    assert found["NCCL_SOCKET_IFNAME"] == Verdict.BROKEN


def test_loopback_cannot_carry_a_run_over_several_nodes():
    found = verdicts(interface_checks({"GLOO_SOCKET_IFNAME": "lo"}, hostname="localhost"))

    assert found["GLOO_SOCKET_IFNAME"] == Verdict.BROKEN


def test_a_machine_without_shared_memory_is_warned(tmp_path):
    assert shared_memory_check(tmp_path / "shm").verdict == Verdict.WARNING


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_found(tmp_path):
    tmp_path.chmod(0o500)

    (found,) = folder_checks(tmp_path / "results")
    assert found.verdict == Verdict.BROKEN


def test_a_folder_that_is_no_folder_is_found():
    (found,) = folder_checks(Path("/proc/results"))

    assert found.verdict == Verdict.BROKEN
    assert "cannot be written" in found.found


def test_a_full_disk_is_found_in_words(tmp_path, monkeypatch):
    """As a file system without room answers: every write fails with ENOSPC."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    found = {finding.what: finding for finding in folder_checks(tmp_path / "results")}

    assert found["results"].verdict == Verdict.BROKEN
    assert found["results"].found == f"{tmp_path} cannot be used: No space left on device"
    assert not list(tmp_path.iterdir())


def test_a_disk_of_this_machine_alone_is_warned(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\nserver:/home /shared nfs4 rw 0 0\n")

    assert file_system(Path("/shared/me/results"), mounts) == "nfs4"
    assert file_system(Path("/sharedstead"), mounts) == "ext4"
    assert shared_check(Path("/shared/me"), mounts).verdict == Verdict.GOOD
    assert shared_check(Path("/scratch"), mounts).verdict == Verdict.WARNING


def test_tasks_of_a_header_that_are_not_the_ranks_asked_are_told():
    """`#SBATCH --ntasks=1` with devices=2."""
    header = {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "1"}

    assert verdicts(job_checks(header, devices=2)) == {
        "ranks": Verdict.WARNING,
        "CPUs": Verdict.WARNING,
    }
    assert verdicts(job_checks(header, devices=1)) == {"ranks": Verdict.GOOD}


def test_settings_of_the_cluster_that_matter_are_told():
    config = (
        "AccountingStorageType   = accounting_storage/none\nJobRequeue              = 0\n"
        "KillWait                = 10 sec\nMaxArraySize            = 1001\n"
    )

    assert verdicts(config_checks(config)) == {
        "MaxArraySize": Verdict.GOOD,
        "accounting": Verdict.GOOD,
        "requeue": Verdict.WARNING,
        "KillWait": Verdict.WARNING,
    }


def test_a_partition_that_is_down_is_told():
    listed = "main* up infinite 2 4 2000 (null)\nold down 1:00:00 8 64 256000 gpu:4\n"

    assert verdicts(partition_checks(listed)) == {
        "partition main*": Verdict.GOOD,
        "partition old": Verdict.WARNING,
    }
