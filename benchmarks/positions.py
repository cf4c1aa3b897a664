"""What evaluations and checkpoints within epochs cost, against those at the ends of epochs.

    python -m benchmarks.positions [--repeats 7] [--batch 512] [--epochs 2]

Trains pairs at the same time on one core, in fresh processes with one thread each: the default run,
and the same with other positions. They take turns every few milliseconds, so whatever else the
machine does slows both alike; processor time is compared. What an evaluation itself takes is in it.
The first pair are two default runs, to see the noise.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

from sweeper.commands.show_plan import plan_grid

#: Words, and how many evaluations or checkpoints they add to an epoch's one.
POSITIONS = {
    "the default": ([], 0),
    "the same, asked for by examples": (["evaluate_every=61440", "checkpoint_every=61440"], 0),
    "evaluated ten times an epoch": (["evaluate_every=0.1"], 9),
    "saved ten times an epoch": (["checkpoint_every=0.1"], 9),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of the workers too
    multiprocessing.set_forkserver_preload(["lightning_modules.train"])
    fixed = ["warmup=0", "schedule=constant", f"epochs={given.epochs}", f"batch={given.batch}"]
    pairs = {name: [] for name in POSITIONS}
    for _ in range(given.repeats):
        for name, (words, _) in POSITIONS.items():
            pairs[name].append(_pair(fixed, [*fixed, *words]))
    print("| | processor time of a run, ratio | each, ms |\n| --- | --- | --- |")
    for name, (_, more) in POSITIONS.items():
        ratios = [moved / plain for plain, moved in pairs[name]]
        each_ms = [1000 * (b - a) / given.epochs / max(1, more) for a, b in pairs[name]]
        each = _spread(each_ms, ".1f") if more else ""
        print(f"| {name} | {_spread(ratios, '.3f')} | {each} |")


def _pair(*both: list[str]) -> list[float]:
    """Processor seconds of two runs that train at the same time [seconds]."""
    context = multiprocessing.get_context("forkserver")
    barrier, pipes, processes = context.Barrier(len(both)), [], []
    for words in both:
        receive, send = context.Pipe(duplex=False)
        pipes.append(receive)
        processes.append(context.Process(target=_train, args=(send, barrier, words)))
        processes[-1].start()
    found = [receive.recv() for receive in pipes]
    for process in processes:
        process.join()
    return found


def _train(send, barrier, words: list[str]) -> None:
    import torch

    from lightning_modules.train import RankContext, train
    from sweeper.spec.run_spec import run_spec

    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", NODE_RANK="0")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        store = torch.distributed.FileStore(f"{folder}/meeting", 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        planned, _ = plan_grid([*words, f"results={folder}/results"], config_dir=None)
        context = RankContext(
            rank=0, folder=own, checkpoint=own / "checkpoint.ckpt", on_epoch=lambda _: None
        )
        spec = run_spec(planned.specs[0].config.resolved)
        barrier.wait()
        started = time.process_time()
        train(spec, context)
        send.send(time.process_time() - started)
        torch.distributed.destroy_process_group()


def _spread(values: list[float], form: str) -> str:
    """Median and extremes."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
