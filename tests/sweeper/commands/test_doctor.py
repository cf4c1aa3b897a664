"""The doctor: each check finds what it is there for, and says what to do."""

import errno
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweeper.commands.checks.check import Severity
from sweeper.commands.checks.cluster import config_checks, job_checks
from sweeper.commands.checks.folders import file_system, folder_checks, shared_check
from sweeper.commands.checks.machine import (
    interface_checks,
    lightning_checks,
    shared_memory_check,
    torch_checks,
)

TORCH = {"version": "2.15", "cuda": "13.2", "available": True, "count": 2}


def severities(checks) -> dict[str, Severity]:
    return {check.what: check.severity for check in checks}


def test_the_command_looks_at_everything_and_leaves_nothing_behind(command, tmp_path):
    done = command("doctor", tmp_path / "results", "--json")

    found = {line["what"]: line["severity"] for line in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {"torch", "GPUs", "rename", "claims", "heartbeats", "disk"} <= set(found)
    assert found["torch"] == found["rename"] == found["claims"] == found["heartbeats"] == "good"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("version", "is_named"), [("2.6.1", False), ("2.6.2", True), ("2.6.3", True), ("2.6.6", False)]
)
def test_the_malicious_releases_of_lightning_are_named(version, is_named, tmp_path, monkeypatch):
    metadata = tmp_path / f"lightning-{version}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: lightning\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = list(lightning_checks())

    assert [check.severity for check in found] == [Severity.BROKEN] * is_named
    assert all(version in check.found for check in found)


def test_a_torch_that_does_not_start_is_told_with_its_last_words():
    (found,) = torch_checks("ImportError: libcudart.so.13", devices=1, driver="595.1")

    assert found.severity == Severity.BROKEN
    assert "ImportError: libcudart.so.13" in found.found


@pytest.mark.parametrize(
    ("torch", "devices", "driver", "severity"),
    [
        (TORCH, 2, "595.1", Severity.GOOD),
        (TORCH, 4, "595.1", Severity.BROKEN),  # fewer GPUs than ranks
        (TORCH | {"available": False}, 1, "470.1", Severity.BROKEN),  # driver older than CUDA
        (TORCH | {"available": False}, 4, None, Severity.GOOD),  # a machine without GPUs
    ],
)
def test_gpus_are_compared_with_the_driver_and_the_devices_asked(torch, devices, driver, severity):
    assert severities(torch_checks(torch, devices=devices, driver=driver))["GPUs"] == severity


def test_a_machine_without_shared_memory_is_warned(tmp_path):
    assert shared_memory_check(tmp_path / "shm").severity == Severity.WARNING


@pytest.mark.parametrize(
    ("variable", "interface"),
    [("NCCL_SOCKET_IFNAME", "ib77"), ("GLOO_SOCKET_IFNAME", "lo")],
    ids=["not here", "cannot carry a run over several nodes"],
)
def test_an_interface_that_no_run_can_use_is_found(variable, interface):
    found = severities(interface_checks({variable: interface}, hostname="localhost"))

    assert found[variable] == Severity.BROKEN


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_found(tmp_path):
    tmp_path.chmod(0o500)

    (found,) = folder_checks(tmp_path / "results")
    assert found.severity == Severity.BROKEN


@pytest.mark.parametrize("column", ["val_loss", "metric"])
def test_a_row_that_differs_from_the_end_of_its_curve_is_named(sweep_here, tmp_path, column):
    """Edited by a hand that keeps the file's metadata."""
    words = ["+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8"]
    assert sweep_here(tmp_path, *words, "epochs=2", "batch=256", "seed=0,1") == 0
    assert severities(folder_checks(tmp_path))["rows"] == Severity.GOOD
    path = min((tmp_path / "runs").iterdir())
    table = pq.read_table(path)
    at = table.column_names.index(column)
    assert table[column][0].as_py() > 0
    pq.write_table(table.set_column(at, table.field(at), pa.array([0.0])), path)

    (check,) = [check for check in folder_checks(tmp_path) if check.what == "rows"]

    assert check.severity == Severity.WARNING
    assert check.found.startswith(f"{path.name[:12]}: other values than at the end of the curve")


def test_a_folder_that_is_no_folder_is_found():
    (found,) = folder_checks(Path("/proc/results"))

    assert found.severity == Severity.BROKEN
    assert "cannot be written" in found.found


def test_a_full_disk_is_found_in_words(tmp_path, monkeypatch):
    """As a file system without room answers: every write fails with ENOSPC."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    found = {check.what: check for check in folder_checks(tmp_path / "results")}

    assert found["results"].severity == Severity.BROKEN
    assert found["results"].found == f"{tmp_path} cannot be used: No space left on device"
    assert not list(tmp_path.iterdir())


def test_a_disk_of_this_machine_alone_is_warned(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\nserver:/home /shared nfs4 rw 0 0\n")

    assert file_system(Path("/shared/me/results"), mounts) == "nfs4"
    assert file_system(Path("/sharedstead"), mounts) == "ext4"
    assert shared_check(Path("/shared/me"), mounts).severity == Severity.GOOD
    assert shared_check(Path("/scratch"), mounts).severity == Severity.WARNING


def test_tasks_of_a_header_that_are_not_the_ranks_asked_are_told():
    """`#SBATCH --ntasks=1` with devices=2."""
    header = {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "1"}

    assert severities(job_checks(header, devices=2)) == {
        "ranks": Severity.WARNING,
        "CPUs": Severity.WARNING,
    }
    assert severities(job_checks(header, devices=1)) == {"ranks": Severity.GOOD}


def test_settings_of_the_cluster_that_matter_are_told():
    config = "JobRequeue              = 0\nKillWait                = 10 sec\n"

    assert severities(config_checks(config)) == {
        "requeue": Severity.WARNING,
        "KillWait": Severity.WARNING,
    }


@pytest.mark.parametrize(
    ("wait", "said"),
    [(20, "term_grace_s to at most 13."), (5, "must be 7 s below KillWait, which is too short")],
)
def test_a_grace_that_fits_the_clusters_kill_wait_is_named_if_there_is_one(wait, said):
    (check,) = config_checks(f"KillWait                = {wait} sec\n")

    assert said in check.do
