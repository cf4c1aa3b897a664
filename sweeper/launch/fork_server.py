"""The fork server, which imports torch once for all runs, and the processes that it starts."""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from sweeper.launch.kernel_memory import oom_kills, out_of_memory
from sweeper.spec.outcomes import Outcome
from sweeper.spec.worker_args import PRELOADED, SIGNALS_OF_LAUNCHER, WorkerArgs
from sweeper.store.publish import publish_json
from sweeper.upstream.others import ensure_fork_server

#: Prefix of variables with Trainer arguments, such as PL_TRAINER_LIMIT_VAL_BATCHES.
TRAINER_PREFIX = "PL_TRAINER_"
_FOREIGN_VARIABLES = (
    "PL_GLOBAL_SEED", "PL_SEED_WORKERS",
    "RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK",
)  # fmt: skip


class ForkServerDied(Exception):
    """No process could be started; the text says why and what to do."""


class GroupLeader(ForkServerProcess):
    """A process that is killed together with those that it started, such as data workers."""

    def run(self) -> None:
        """Lead a new process group, in the new process."""
        os.setpgid(0, 0)
        super().run()

    def kill(self) -> None:
        """Kill all processes of the group that are left, even if their leader has ended."""
        assert self.pid is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):  # no group yet, or no longer
            os.killpg(self.pid, signal.SIGKILL)
        super().kill()


@contextlib.contextmanager
def isolate_imports() -> Generator[None]:
    """Import torch and Lightning without garbage collection, and without a shell's settings.

    Importing leaves no garbage; without the collector it takes four fifths of the time. Lightning
    takes Trainer arguments and a seed from environment variables, which no config shows and no row
    records. On import it also takes the rank that other launchers set: if that is above 0, its
    loggers do not write. These variables are removed for good; a worker sets those of its own rank.
    """
    for name in [name for name in os.environ if name.startswith(TRAINER_PREFIX)]:
        del os.environ[name]
    for name in _FOREIGN_VARIABLES:
        os.environ.pop(name, None)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # so that modules can be torn down at exit
        gc.enable()


def open_fork_server(targets: Sequence[str] = ()) -> None:
    """Have the fork server of this process import what workers need, once for all of them.

    That is torch, and the modules that define these targets: a run's module, data and model.
    """
    os.environ[PRELOADED] = ",".join(target.rpartition(".")[0] for target in targets)
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["sweeper.launch.worker_imports"]
    )


def start_process(target: Callable[[Any], None], args: object) -> GroupLeader:
    """Start a process from the fork server, shielded from Ctrl-C and similar signals.

    ForkServerDied if there is no fork server to start it.
    """
    kills = oom_kills()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS_OF_LAUNCHER}
    try:
        try:
            ensure_fork_server()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        process = GroupLeader(target=target, args=(args,), daemon=False)
        process.start()
    except (EOFError, ConnectionError) as error:
        why = f", killed by the kernel: {out_of_memory()}" if oom_kills() > kills else ""
        msg = (
            "the fork server, which imports torch for all runs, must stay alive; it died while a "
            f"run was starting{why}. If its output above does not say why: free memory, or raise "
            "the limit (also that of ulimit -v), and repeat the command."
        )
        raise ForkServerDied(msg) from error
    except OSError as error:
        remedy = "Correct the cause"
        if isinstance(error, BlockingIOError):
            remedy = "End other processes or raise the limit (ulimit -u)"
        what = f"{error.filename}: " if error.filename else ""
        msg = (
            f"a run must be able to start processes; got: {what}{error.strerror or error}. "
            f"{remedy}, and repeat the command."
        )
        raise ForkServerDied(msg) from error
    return process


def train_rank(args: WorkerArgs) -> None:
    """The entry point of a worker process; the fork server has already imported what it needs."""
    try:
        from lightning_modules.worker import work  # imports torch
    except Exception as error:  # noqa: BLE001  whatever a library does as it is imported
        first = getattr(sys.modules.get("sweeper.launch.worker_imports"), "error", None) or error
        reason = (
            f"torch must be imported to train; it could not be ({first!r}). Check the "
            "installation, the variables of the environment and the memory that a process may take "
            "(ulimit -v)."
        )
        record = {"outcome": Outcome.FAILED, "reason": reason}
        publish_json(Path(args.folder) / f"record-{args.rank}.json", record)
        sys.exit(1)
    work(args)
