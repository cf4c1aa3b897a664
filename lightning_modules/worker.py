"""A rank of a run in its own process; the command line is never re-executed."""

import contextlib
import errno
import faulthandler
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_modules.process.device import is_out_of_memory, keep_freed_memory
from lightning_modules.process.output import redirect_output
from lightning_modules.process.world import has_exchange
from lightning_modules.train import RankContext, train
from sweeper.spec.config import CommHook, run_config
from sweeper.spec.method_checks import check_precision
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.worker_args import (
    CHECKPOINT,
    FIRST_STEP,
    GRACEFUL_STOP,
    METRIC_NOT_LOGGED,
    PROGRESS,
    SIGNALS_OF_LAUNCHER,
    UNWRITABLE_EXIT,
    WRONG_COUNT,
    WorkerArgs,
)
from sweeper.store.publish import NOT_ALLOWED, publish_json, publish_text
from sweeper.store.step_progress import write_step_progress

_REASON_LINES = 3
_MEETING_S = 300.0
#: Errors of a folder that may be written again later.
_LASTS = (*NOT_ALLOWED, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)


def work(rank: WorkerArgs) -> None:
    """Train a rank and leave its record in the attempt's folder."""
    folder = Path(rank.folder)
    redirect_output(folder / ("log.txt" if rank.rank == 0 else f"log-rank{rank.rank}.txt"))
    faulthandler.enable()
    _exit_with_parent()
    with contextlib.suppress(OSError):
        # If memory runs out, Linux is to end this process, not the launcher, which reports it.
        Path("/proc/self/oom_score_adj").write_text("500")
    # Data workers start by the default method: a fork server would import everything again in each
    # of them, and refuse data sets that cannot be pickled.
    multiprocessing.set_start_method(None, force=True)
    resolved = json.loads((folder / "config.json").read_text())
    config = run_config(resolved)
    choose_nccl(config.comm_hook)
    reproducible = bool(config.reproducible)
    has_group = has_exchange(config.comm_hook, rank.world_size, reproducible=reproducible)
    if rank.rank == 0:
        _note_first_step(folder / FIRST_STEP)
    context = RankContext(
        rank=rank.rank,
        folder=folder,
        checkpoint=folder.parent / CHECKPOINT,
        on_epoch=lambda rows: append_rows(folder / PROGRESS, rows),
        on_steps=lambda progress: write_step_progress(progress, folder),
        stop_requested=lambda: _is_there(folder / GRACEFUL_STOP),
    )
    try:
        on_gpu = _enter(rank, config.accelerator, has_group=has_group)
        keep_freed_memory()
        check_precision(config, has_gpu=on_gpu)
        record = train(run_spec(resolved), context)
    except Exception as error:  # noqa: BLE001  a failed run is a row, whatever failed
        with contextlib.suppress(OSError):  # a full disk takes no log either
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(_leave_failure(folder, rank.rank, error))  # other ranks may wait in a collective
    if rank.rank == 0:
        publish_json(folder / "record-0.json", record)
    if has_group:
        dist.destroy_process_group()


def _exit_with_parent() -> None:
    """End this process when the launcher is gone, however it ended."""
    parent = multiprocessing.parent_process()
    for number in SIGNALS_OF_LAUNCHER if parent else (signal.SIGINT,):  # srun's ranks heed SIGTERM
        signal.signal(number, signal.SIG_IGN)
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        if os.getpgrp() == os.getpid():  # the data workers too, whatever they are doing
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _note_first_step(file: Path) -> None:
    """Create a file once an optimizer has taken a step: a run that fails before that is retried."""
    left_to_note = [file]

    def note(*_: Any) -> None:
        if left_to_note:
            left_to_note.clear()
            with contextlib.suppress(OSError):
                file.touch()

    register_optimizer_step_post_hook(note)


def choose_nccl(comm_hook: CommHook) -> None:
    """Make NCCL reduce by the run's algorithm; before its first use, as NCCL reads this only once.

    Only all-reduce has trees; the plain name would leave the other operations without an algorithm.
    """
    algorithms = {"ring": "ring", "tree": "ring;allreduce:tree"}
    if (chosen := getattr(comm_hook, "nccl_algo", None)) is not None:
        os.environ["NCCL_ALGO"] = algorithms[chosen]


def _enter(rank: WorkerArgs, accelerator: str, *, has_group: bool) -> bool:
    """Join the ranks (environment, threads, process group); return whether they are on GPUs."""
    os.environ.update(
        LOCAL_RANK=str(rank.local_rank),
        NODE_RANK=str(rank.node_rank),
        RANK=str(rank.rank),
        WORLD_SIZE=str(rank.world_size),
        OMP_NUM_THREADS=str(rank.threads),
        **rank.environment,
    )
    torch.set_num_threads(rank.threads)
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()  # sees the environment as set
    if on_gpu:
        torch.cuda.set_device(rank.local_rank)
    if has_group:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=_store(rank),
            rank=rank.rank,
            world_size=rank.world_size,
        )
    return on_gpu


def _store(rank: WorkerArgs) -> dist.Store:
    """Where the ranks meet: a file on a single machine; over several, a port published in a file.

    On network file systems renames can be relied on, file locks cannot.
    """
    meeting = Path(rank.folder) / "rendezvous"
    if rank.master is None:
        return dist.FileStore(str(meeting), rank.world_size)
    if rank.rank == 0:
        store = dist.TCPStore(
            rank.master, 0, rank.world_size, is_master=True, wait_for_workers=False
        )
        publish_text(meeting, str(store.port))
        return store
    deadline = time.monotonic() + _MEETING_S
    while not meeting.exists():
        if time.monotonic() > deadline:
            msg = f"rank 0 must open {meeting} within {_MEETING_S:g} s; it did not. See its log."
            raise TimeoutError(msg)
        os.listdir(rank.folder)  # noqa: PTH208  makes network file systems look again
        time.sleep(0.1)
    return dist.TCPStore(rank.master, int(meeting.read_text()), rank.world_size, is_master=False)


def _is_there(path: Path) -> bool:
    """Whether a file exists; False while the file system cannot tell."""
    try:
        return path.exists()
    except OSError:
        return False


def append_rows(progress: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows of the curve to a file of JSON lines."""
    with progress.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _leave_failure(folder: Path, rank: int, error: Exception) -> int:
    """Write the reason to the folder; return an exit code, which says if that could not be done."""
    reason = "".join(traceback.format_exception_only(error)[-_REASON_LINES:]).strip()
    if "Original Traceback" in reason:  # a data worker's, whose error follows the frames
        reason = re.split(r"^ .*\n", reason, flags=re.MULTILINE)[-1]
    outcome = Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.FAILED
    if isinstance(error, OSError) and error.errno in _LASTS and str(folder.parent) in str(error):
        outcome = Outcome.PREEMPTED
    try:
        for counted in folder.parents[2].glob("facts/*.json") if WRONG_COUNT in reason else ():
            counted.unlink(missing_ok=True)
        if METRIC_NOT_LOGGED in reason:  # a wrong command: retried, however far the run came
            (folder / FIRST_STEP).unlink(missing_ok=True)
        publish_json(folder / f"record-{rank}.json", {"outcome": outcome, "reason": reason})
    except OSError as unwritable:
        return UNWRITABLE_EXIT + (unwritable.errno or 0)
    return 1
