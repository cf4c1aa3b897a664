"""What `reproducible=true` costs in time and memory, against the plain sum of the same run.

    python -m benchmarks.reproducible [--repeats 5] [--steps 6] [--ranks 1,2]

Alternates in one call, each run in fresh one-thread processes that train through `train`: a
ResNet-18 of 11 million parameters on 32x32 images, 8 micro-batches of 8 a step over all ranks, so
that there is much to add up and little to compute. Processor seconds of rank 0, all its threads
included, are compared: they say the same on a busy machine.
"""

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from pathlib import Path

from sweeper.commands.show_plan import plan_grid

WORDS = [
    *("data=synthetic", "data.shape=[3,32,32]", "data.num_classes=10", "data.num_val_examples=8"),
    *("model=resnet18", "model.stem=imagenet", "batch=64", "micro_batch=8", "bn_span=8"),
    *("warmup=0", "epochs=1", "schedule=constant"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ranks", default="1,2")
    given = parser.parse_args()
    multiprocessing.set_forkserver_preload(["lightning_modules.train"])
    print("| ranks | processor seconds per step | with reproducible=true | ratio | MiB beyond |")
    print("| --- | --- | --- | --- | --- |")
    for ranks in map(int, given.ranks.split(",")):
        plain, ordered, peaks = [], [], []
        for _ in range(given.repeats):
            plain_s, plain_peak = _step(ranks, given.steps, "false")
            ordered_s, peak = _step(ranks, given.steps, "true")
            plain.append(plain_s)
            ordered.append(ordered_s)
            peaks.append((peak - plain_peak) * 1024)
        ratios = [after / before for after, before in zip(ordered, plain, strict=True)]
        cells = [_spread(plain, ".2f"), _spread(ordered, ".2f"), _spread(ratios, ".2f")]
        print(f"| {ranks} | {' | '.join(cells)} | {_spread(peaks, '+.0f')} |", flush=True)


def _step(ranks: int, steps: int, is_reproducible: str) -> tuple[float, float]:
    """Processor seconds of a step, from a run of one and a run of more, and the peak [GiB]."""
    once, _ = _run(ranks, 1, is_reproducible)
    often, peak = _run(ranks, 1 + steps, is_reproducible)
    return (often - once) / steps, peak


def _run(ranks: int, steps: int, is_reproducible: str) -> tuple[float, float]:
    """Processor seconds and peak memory [GiB] of the first rank of a run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *WORDS,
            f"data.num_train_examples={64 * steps}",
            f"devices={ranks}",
            f"reproducible={is_reproducible}",
            f"results={folder}/results",
        ]
        planned, _ = plan_grid(words, config_dir=None)
        context = multiprocessing.get_context("forkserver")
        receive, send = context.Pipe(duplex=False)
        arguments = (send, planned.specs[0].config.resolved, folder, ranks)
        processes = [context.Process(target=train_rank, args=(*arguments, r)) for r in range(ranks)]
        for process in processes:
            process.start()
        measured = receive.recv()
        for process in processes:
            process.join()
        return measured


def train_rank(send, config: dict, folder: str, ranks: int, rank: int) -> None:
    import os

    import torch

    from lightning_modules.train import RankContext, train
    from sweeper.spec.run_spec import run_spec

    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(ranks), NODE_RANK="0")
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/meeting", ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    own = Path(folder)
    context = RankContext(
        rank=rank, folder=own, checkpoint=own / "checkpoint.ckpt", on_epoch=lambda _: None
    )
    started = time.process_time()
    train(run_spec(config), context)
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        send.send((time.process_time() - started, peak))


def _spread(values: list[float], form: str) -> str:
    """Median and extremes."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
