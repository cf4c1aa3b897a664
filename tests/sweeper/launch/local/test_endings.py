"""What is left when a run ends badly: no process, and the right word for it."""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from sweeper.launch import kernel_memory
from sweeper.launch.fork_server import ForkServerDied, isolate_imports, start_process, train_rank
from sweeper.launch.kernel_memory import oom_kills, out_of_memory
from sweeper.spec.worker_args import WorkerArgs
from sweeper.store.lease import process_start

_MIB = 2**20


@pytest.mark.parametrize("by", ["SIGKILL", "error"])
def test_no_data_worker_outlives_its_run(by, launch, tmp_path):
    note = tmp_path / "worker"
    model = {"_target_": "provoked_kills.Leaving", "note": str(note), "by": by}

    launch({"model": model})

    worker, patience = int(note.read_text()), time.monotonic() + 60
    while (is_left := process_start(worker) is not None) and time.monotonic() < patience:
        time.sleep(0.01)  # it was killed, which takes the kernel a moment
    if is_left:
        os.kill(worker, signal.SIGKILL)
    assert not is_left


@pytest.fixture
def cgroup(monkeypatch):
    """A cgroup of 64 MiB whose killed processes count as those of this one."""
    try:
        folder = _made_cgroup()
    except OSError as error:
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    own = f"0::/{folder.name}" if (folder / "memory.max").exists() else f"4:memory:/{folder.name}"
    monkeypatch.setattr(kernel_memory, "_read", _with_own_cgroup(own, kernel_memory._read))
    yield folder
    while (folder / "cgroup.procs").read_text():
        time.sleep(0.01)
    folder.rmdir()


def _made_cgroup():
    root = Path("/sys/fs/cgroup")
    of_v1 = root / "memory" / f"sweeper-test-{os.getpid()}"
    folder = of_v1 if of_v1.parent.is_dir() else root / of_v1.name
    folder.mkdir()
    try:
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max")
        for limit in (folder / name for name in names):
            if limit.exists():
                limit.write_text(str(64 * _MIB))
        if not any((folder / name).exists() for name in names):
            raise OSError("the memory controller is not on")
    except OSError:
        folder.rmdir()
        raise
    return folder


def _with_own_cgroup(own, text):
    return lambda file: own if file == kernel_memory._OWN else text(file)


@pytest.mark.parametrize(("num_workers", "what"), [(0, "the worker"), (1, "a data worker")])
def test_what_the_kernel_kills_for_memory_goes_on_with_half_the_micro_batch(
    num_workers, what, cgroup, launch, results
):
    model = {"_target_": "provoked_kills.TooLargeForCgroup", "cgroup": str(cgroup)}

    row = launch({"model": {**model, "num_workers": num_workers}, "micro_batch": 768}).iloc[0]

    earlier = pd.read_parquet(results / "superseded/runs").iloc[0]
    assert earlier.outcome == "out_of_memory"
    assert earlier.reason == (
        f"the kernel killed {what}: memory ran out; all processes here together may use 0.0625 GiB"
    )
    assert (row.outcome, row.micro_batch) == ("finished", 384)
    assert row.reason.endswith("since attempt 1 ran out of memory with micro_batch=768")


@pytest.mark.parametrize(
    ("own", "files", "kills", "gib"),
    [
        pytest.param(
            "0::/job/step",
            {
                "job/memory.max": "1073741824",
                "job/step/memory.max": "max",
                "job/step/memory.events": "low 0\noom 7\noom_kill 3\noom_group_kill 0",
            },
            3,
            1,
            id="v2",
        ),
        pytest.param(
            "5:cpu:/x\n4:memory:/job\n0::/",
            {
                "memory/job/memory.limit_in_bytes": "2147483648",
                "memory/job/memory.oom_control": "under_oom 0\noom_kill 2",
            },
            2,
            2,
            id="v1",
        ),
        pytest.param(
            "0::/machine/container",
            {"memory.max": "1073741824", "memory.events": "oom_kill 4"},
            4,
            1,
            id="container",
        ),
        pytest.param("0::/", {}, 5, None, id="machine"),
    ],
)
def test_kills_and_limits_are_those_of_the_cgroup_else_of_the_machine(
    own, files, kills, gib, tmp_path, monkeypatch
):
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    for name, text in {"_OWN": own, "_MACHINE": "pgfault 9\noom_kill 5\n"}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(kernel_memory, name, tmp_path / name)
    monkeypatch.setattr(kernel_memory, "_CGROUPS", tmp_path / "root")

    assert oom_kills() == kills
    if gib:
        assert out_of_memory().endswith(f"may use {gib} GiB")


@pytest.mark.parametrize(
    ("function", "error", "reason"),
    [
        ("connect_to_new_process", EOFError(), "the fork server, which imports torch for all runs"),
        (
            "ensure_running",
            BlockingIOError(11, "Resource temporarily unavailable"),
            "a run must be able to start processes; got: Resource temporarily",
        ),
        (
            "ensure_running",
            OSError("AF_UNIX path too long"),
            "a run must be able to start processes; got: AF_UNIX path too long. Correct the cause",
        ),
        (
            "ensure_running",
            PermissionError(13, "Permission denied", "/tmp/listener"),
            "a run must be able to start processes; got: /tmp/listener: Permission denied. Correct",
        ),
    ],
)
def test_a_run_that_no_process_can_be_started_for_ends_with_a_sentence(
    launch, monkeypatch, function, error, reason
):
    def fail(*_):
        raise error

    monkeypatch.setattr(f"multiprocessing.forkserver.{function}", fail)

    row = launch({"micro_batch": 768}).iloc[0]

    assert row.outcome == "preempted"
    assert row.reason.startswith(reason)


def test_a_rank_whose_fellow_cannot_be_started_is_ended(launch, monkeypatch):
    """It would wait for the other, and the command for it."""
    started = []

    def start(target, args):
        if started:
            raise ForkServerDied("no more")
        started.append(start_process(target, args))
        return started[0]

    monkeypatch.setattr("sweeper.launch.ranks.start_process", start)

    assert launch({"devices": 2}).iloc[0].reason == "no more"
    assert started[0].exitcode == -signal.SIGKILL


def test_a_worker_that_ends_before_it_has_a_log_is_not_said_to_have_one(launch, monkeypatch):
    monkeypatch.setattr("sweeper.launch.ranks.train_rank", sys.exit)

    reason = launch({}).iloc[0].reason

    assert (
        reason == "the worker exited with 1; it wrote no log: see its last output on the terminal"
    )


def test_a_module_that_cannot_be_imported_ends_no_fork_server(tmp_path, monkeypatch):
    (tmp_path / "broken_code.py").write_text("raise SystemExit('no')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SWEEPER_PRELOAD", "broken_code,,no.such.module,")

    assert "sweeper.launch.worker_imports" not in sys.modules
    importlib.import_module("sweeper.launch.worker_imports")

    assert "broken_code" not in sys.modules
    del sys.modules["sweeper.launch.worker_imports"]


def test_what_a_shell_has_set_for_lightning_is_gone_before_it_is_imported(monkeypatch):
    """PL_TRAINER_LIMIT_VAL_BATCHES=1 would validate on one batch, RANK=1 would silence loggers."""
    left = {"PL_TRAINER_LIMIT_VAL_BATCHES": "1", "PL_GLOBAL_SEED": "7", "RANK": "abc"}
    for name, value in left.items():
        monkeypatch.setenv(name, value)

    with isolate_imports():
        assert not left.keys() & os.environ.keys()


class _Broken:
    """A module that a variable of the environment breaks."""

    def __getattr__(self, name):
        raise ValueError(f"invalid literal for int(): {name}")


@pytest.mark.parametrize(
    ("worker", "first", "words"),
    [
        (None, None, "ModuleNotFoundError("),
        (_Broken, None, "ValueError('invalid literal"),
        # The fork server's own: a second import of torch in a process tells another error.
        (None, OSError("libcudart.so.13: cannot open"), "OSError('libcudart.so.13: cannot open')"),
    ],
)
def test_a_rank_without_torch_tells_the_first_error_of_its_import(
    tmp_path, monkeypatch, worker, first, words
):
    monkeypatch.setitem(sys.modules, "sweeper.launch.worker_imports", SimpleNamespace(error=first))
    monkeypatch.setitem(sys.modules, "lightning_modules.worker", worker and worker())
    args = WorkerArgs(
        folder=str(tmp_path), rank=0, local_rank=0, node_rank=0, world_size=1, threads=1,
        environment={},
    )  # fmt: skip

    with pytest.raises(SystemExit):
        train_rank(args)

    record = json.loads((tmp_path / "record-0.json").read_text())
    assert record["reason"].startswith(f"torch must be imported to train; it could not be ({words}")


def test_float16_that_turns_out_to_be_on_a_cpu_fails(launch, monkeypatch):
    """As in a job on a node without GPUs."""
    monkeypatch.setattr("sweeper.launch.local.preflight.check_precision", lambda *a, **k: None)

    row = launch({"precision": "16-mixed"}).iloc[0]

    assert row.outcome == "failed"
    assert row.reason.startswith("ValueError: precision=16-mixed needs a GPU")
