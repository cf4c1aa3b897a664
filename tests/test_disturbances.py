"""Sweeps that are interrupted, doubled, or lose their disk: nothing is lost or done twice."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from process_tree import read_until, start

from sweeper.store.lease import EXPIRES_S, HEARTBEAT_S

TINY = ["epochs=1", "warmup=0", "schedule=constant", "batch=3840", "data.num_train_examples=3840"]
#: Minutes of sleep.
LONG = [
    "epochs=400", "warmup=0", "schedule=constant", "batch=3840", "model._target_=provoked.Slow",
]  # fmt: skip

#: Another name and other process ids: what a second machine on a shared folder is to a sweep.
ANOTHER_MACHINE = (
    *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'hostname another; exec "$@"', "sh"),
)


#: The permissions of files count for it even if root started it.
MORTAL = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()


def sweep_in(results: Path, *words: str, within: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return start("-m", *words, f"results={results}", within=within)


def wait_until(condition, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def can_be_another_machine() -> bool:
    return (
        subprocess.run([*ANOTHER_MACHINE, "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.slow
def test_three_sweeps_of_one_grid_share_its_thirty_runs(results):
    """One of them on another machine, where names can be had for one."""
    words = [*TINY, "seed=range(30)"]
    elsewhere = ANOTHER_MACHINE if can_be_another_machine() else ()

    sweeps = [sweep_in(results, *words, within=within) for within in ((), elsewhere, ())]
    said = [sweep.communicate(timeout=900)[0] for sweep in sweeps]

    for sweep, text in zip(sweeps, said, strict=True):
        assert sweep.returncode == 0, text
    runs = pd.read_parquet(results / "runs")
    assert len(runs) == runs.run_id.nunique() == 30
    assert set(runs.outcome) == {"finished"}
    assert set(runs.attempt) == {1}
    assert not (results / "superseded").exists()
    assert sum(text.count("start    ") for text in said) == 30


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_sweep_takes_over_what_a_killed_one_had_begun(results, elsewhere):
    """Of a process elsewhere only the silence of its heartbeat tells that it is dead."""
    if elsewhere and not can_be_another_machine():
        pytest.skip("namespaces of names and process ids cannot be made here")
    first = sweep_in(results, *LONG, within=ANOTHER_MACHINE if elsewhere else ())
    wait_until(lambda: list(results.glob("attempts/*/checkpoint.ckpt")))
    second = sweep_in(results, *LONG, "timeout_s=4")
    assert "elsewhere batch=3840" in read_until(second, "elsewhere batch=3840")

    silent_from = time.monotonic()
    first.kill()
    first.communicate()
    said, _ = second.communicate(timeout=900)

    assert "start    batch=3840" in said
    if elsewhere:
        assert time.monotonic() - silent_from > EXPIRES_S - HEARTBEAT_S
    row = pd.read_parquet(results / "runs").iloc[0]
    assert (row.outcome, row.attempt) == ("timed_out", 2)
    superseded = pd.read_parquet(results / "superseded/runs").iloc[0]
    assert superseded.reason.startswith("its launcher was gone after epoch")


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_there_and_says_how_to_go_on(results):
    sweep = sweep_in(results, *LONG)
    wait_until(lambda: list(results.glob("attempts/*/checkpoint.ckpt")))

    sweep.send_signal(signal.SIGINT)
    said, _ = sweep.communicate(timeout=900)

    assert sweep.returncode == 130
    assert "Stopping: saving 1 run at the next step" in said
    assert "Results so far are kept; repeat the command to resume." in said
    assert said.splitlines()[-1].startswith("1 preempted in ")
    row = pd.read_parquet(results / "runs").iloc[0]
    assert row.outcome == "preempted"
    assert row.epochs_completed >= 1
    assert list(results.glob("attempts/*/checkpoint.ckpt"))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte that is all ours."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_runs_with_the_reason_and_destroys_nothing(small_disk, sweep_here):
    results = small_disk / "results"
    assert sweep_here(results, *TINY) == 0
    before = (pd.read_parquet(results / "runs"), pd.read_parquet(results / "curves"))
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(b"0" * (free.f_bavail * free.f_frsize - 60_000))

    full = sweep_in(results, *TINY, "seed=1,2,3")
    said, _ = full.communicate(timeout=900)

    assert full.returncode == 1
    assert "No space left on device" in said
    after = pd.read_parquet(results / "runs")
    pd.testing.assert_frame_equal(
        after[after.run_id.isin(before[0].run_id)].reset_index(drop=True), before[0]
    )
    filler.unlink()
    assert sweep_here(results, *TINY, "seed=0,1,2,3", "retry=failed") == 0
    runs = pd.read_parquet(results / "runs")
    assert sorted(runs.seed) == [0, 1, 2, 3]
    assert set(runs.outcome) == {"finished"}


@pytest.mark.slow
def test_a_folder_turned_read_only_ends_the_sweep_with_the_reason(results, sweep_here):
    sweep = sweep_in(results, *LONG, within=MORTAL)
    wait_until(lambda: list(results.glob("attempts/*/checkpoint.ckpt")))

    subprocess.run(["chmod", "-R", "a-w", results], check=True)
    said, _ = sweep.communicate(timeout=900)
    subprocess.run(["chmod", "-R", "u+w", results], check=True)

    assert sweep.returncode == 1
    assert "Permission denied" in said
    assert "Traceback" not in said
    assert sweep_here(results, *LONG, "timeout_s=3") == 1
    row = pd.read_parquet(results / "runs").iloc[0]
    assert (row.outcome, row.attempt) == ("timed_out", 2)
    assert row.epochs_completed >= 1
