"""What tests run on several ranks, one process each."""

import multiprocessing
import os
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from line import Line, constant_batches, train_line
from pytorch_lightning.callbacks import Callback
from torch.profiler import ProfilerActivity, profile

from lightning_modules.callbacks.checkpoint import LaunchersSigterm, StopRequest
from lightning_modules.gradients.ddp_hooks import Hierarchy
from lightning_modules.methods.local_sgd import PostLocalSGD
from lightning_modules.train import RankContext, train
from sweeper.spec.run_spec import run_spec


def ask_ranks(answer, meeting: Path, *, world_size: int) -> list:
    """What a function of this module answers on each rank, given the rank and a free folder."""
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for rank in range(world_size):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(
            target=_answer, args=(send, answer, rank, world_size, str(meeting))
        )
        process.start()
        send.close()  # so that a process that dies ends the wait
        pipes.append(receive)
        processes.append(process)
    answers = [receive.recv() for receive in pipes]
    for receive, process in zip(pipes, processes, strict=True):
        process.join()
        receive.close()
    return answers


def _answer(pipe: Connection, answer, rank: int, world_size: int, meeting: str) -> None:
    number, size = str(rank), str(world_size)
    os.environ.update(LOCAL_RANK=number, NODE_RANK="0", RANK=number, WORLD_SIZE=size)
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    pipe.send(answer(rank, Path(meeting).parent))
    dist.barrier()
    dist.destroy_process_group()


def hierarchical_means(rank: int, folder: Path) -> list[float]:
    """Two means over nodes of two ranks: of the rank and its square, then of its cube."""
    del folder
    hierarchy = Hierarchy(ranks_per_node=2)
    first = hierarchy.average(torch.tensor([rank, rank**2]).double())
    second = hierarchy.average(torch.tensor([rank**3]).double())
    return [*first.tolist(), *second.tolist()]


def hybrid_means(rank: int, folder: Path) -> list[list[float] | bool]:
    """The means of a bucket over a threshold of 16 bytes and of one at it; whether nodes met."""
    del folder
    hierarchy, found = Hierarchy(ranks_per_node=2, most_mib=2**-16), []
    for numbers in ([rank, rank**2, rank**3], [rank, rank**2]):
        held = torch.tensor(numbers, dtype=torch.float64)
        bucket: Any = SimpleNamespace(buffer=lambda held=held: held)
        found += [hierarchy.exchange(bucket).wait().tolist(), hierarchy._groups is not None]
    return found


def stops(rank: int, folder: Path) -> tuple[list[bool], int]:
    """What three polls say, and after how many more steps a stop is due; the third poll's."""
    del folder
    polls = []

    def is_requested() -> bool:
        polls.append(rank)
        return rank == 1 or len(polls) % 3 == 0

    request, device, steps = StopRequest(is_requested, rank=rank), torch.device("cpu"), 1
    polled = [request.poll(device) for _ in range(3)]
    while steps < 100 and not request.is_due(device):  # due by the 56th
        steps += 1
    return polled, steps


class _Agreement(Callback):
    def __init__(self, local: PostLocalSGD) -> None:
        self._local, self.after_steps = local, []

    def on_train_batch_end(self, *_) -> None:
        self.after_steps.append(self._local.is_agreed)


def local_steps(rank: int, folder: Path) -> tuple[float, list[bool]]:
    """The weight after a shared step and three local ones, and when ranks had the same.

    Rank 0 trains on 1s and rank 1 on 2s: the gradients of a weight w are w and 4 w.
    """
    module, local = Line(), PostLocalSGD(local_steps=2, start_step=1)
    agreement = _Agreement(local)
    batches = constant_batches(4, 1.0 + rank)
    train_line(folder, module, [local, agreement], batches, accumulate=1)
    return module.weight, agreement.after_steps


def broadcasts(rank: int, folder: Path) -> int:
    """How often ranks broadcast while they train on 4 micro-batches."""
    del rank
    counted, broadcast = [], dist.broadcast

    def counting(*args, **kwargs):
        counted.append(args)
        return broadcast(*args, **kwargs)

    dist.broadcast = counting
    train_line(folder, Line(), [LaunchersSigterm()], constant_batches(4))
    return len(counted)


def train_each(configs: dict[str, dict[str, Any]], rank: int, folder: Path) -> dict[str, Any]:
    """The record of each of several runs, by name."""
    records = {}
    for name, config in configs.items():
        (folder / name).mkdir(exist_ok=True)
        records[name] = train_rank(config, rank, folder / name)
    return records


def train_rank(config: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """The record of a run."""
    own = folder / f"rank-{rank}"
    own.mkdir()
    checkpoint = folder / "checkpoint.ckpt"
    context = RankContext(rank=rank, folder=own, checkpoint=checkpoint, on_epoch=lambda rows: None)
    return train(run_spec(config), context)


def count_exchanges(config: dict[str, Any], rank: int, folder: Path) -> tuple[Counter[str], int]:
    """How often gloo did what while a run was trained, and the run's steps."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        record = train_rank(config, rank, folder)
    return Counter(event.name for event in profiled.events()), record["steps"]


class _Kill(Callback):
    """Kills its process before a step, so that nothing more is saved."""

    def __init__(self, at: int | None) -> None:
        self._at = at

    def on_train_batch_start(self, trainer, *_) -> None:
        if self._at is not None and trainer.global_step >= self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def train_until(kill_at: int | None, config: dict[str, Any], rank: int, folder: Path) -> list:
    """The curve of a run that goes on from its checkpoint; never answers if it is killed."""
    own = folder / f"rank-{rank}-{os.getpid()}"
    own.mkdir()
    context = RankContext(
        rank=rank,
        folder=own,
        checkpoint=folder / "checkpoint.ckpt",
        on_epoch=lambda rows: None,
        fit=lambda trainer, *_: trainer.callbacks.insert(0, _Kill(kill_at)),
    )
    return train(run_spec(config), context)["curve"]


def refusal(config: dict[str, Any], rank: int, folder: Path) -> str:
    """Why a run was refused."""
    try:
        train_rank(config, rank, folder)
    except ValueError as error:
        return str(error)
    return ""
