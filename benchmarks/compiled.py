"""What `compile=true` and `checkpoint_activations=true` do to the time of a step on a CPU.

    python -m benchmarks.compiled [--repeats 5] [--steps 40] [--models gpt,resnet8]

Alternates in one call, each run in a fresh one-thread process that trains through `train`.
Processor seconds of a step are compared, the median of those after the first four: they say the
same on a busy machine. The first step's seconds, on the clock, hold the compilation.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.reproducible import _spread
from sweeper.commands.show_plan import plan_grid

MODELS = {
    "gpt": ["model=gpt", "batch=8", "micro_batch=8", "data.num_val_examples=8"],
    "resnet8": [
        *("model=resnet8", "data=synthetic", "data.shape=[3,32,32]", "data.num_classes=10"),
        *("data.num_val_examples=32", "batch=32", "micro_batch=32", "bn_span=32"),
    ],
}
ARMS = {
    "plain": [],
    "compile=true": ["compile=true"],
    "checkpoint_activations=true": ["checkpoint_activations=true"],
}
_WARM = 4  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--models", default=",".join(MODELS))
    given = parser.parse_args()
    multiprocessing.set_forkserver_preload(["lightning_modules.train"])
    print("| model | | processor seconds per step | ratio to plain | first step, s |")
    print("| --- | --- | --- | --- | --- |")
    for model in given.models.split(","):
        measured = [
            {arm: _run([*MODELS[model], *words], given.steps) for arm, words in ARMS.items()}
            for _ in range(given.repeats)
        ]
        for arm in ARMS:
            steps, firsts = zip(*(one[arm] for one in measured), strict=True)
            ratios = [one[arm][0] / one["plain"][0] for one in measured]
            cells = [_spread(steps, ".3f"), _spread(ratios, ".2f"), _spread(firsts, ".1f")]
            print(f"| {model} | {arm} | {' | '.join(cells)} |", flush=True)


def _run(words: list[str], steps: int) -> tuple[float, float]:
    """Processor seconds of a step, and seconds of the first."""
    with tempfile.TemporaryDirectory() as folder:
        batch = next(int(word[6:]) for word in words if word.startswith("batch="))
        size = [f"data.num_train_examples={batch * (_WARM + steps)}", f"results={folder}/results"]
        short = ["epochs=1", "warmup=0", "schedule=constant"]
        planned, _ = plan_grid([*words, *size, *short], config_dir=None)
        context = multiprocessing.get_context("forkserver")
        receive, send = context.Pipe(duplex=False)
        process = context.Process(
            target=train_here, args=(send, planned.specs[0].config.resolved, folder)
        )
        process.start()
        taken = receive.recv()
        process.join()
        return taken


def train_here(send, config: dict, folder: str) -> None:
    import torch
    from pytorch_lightning.callbacks import LambdaCallback

    from lightning_modules.train import RankContext, train
    from sweeper.spec.run_spec import run_spec

    torch.set_num_threads(1)
    at, clock = [], []

    def note(*_):
        at.append(time.process_time())
        clock.append(time.perf_counter())

    def add(trainer, *_):
        each = LambdaCallback(on_train_epoch_start=note, on_train_batch_end=note)
        trainer.callbacks.insert(-1, each)

    context = RankContext(
        rank=0,
        folder=Path(folder),
        checkpoint=Path(folder, "checkpoint.ckpt"),
        on_epoch=lambda _: None,
        fit=add,
    )
    train(run_spec(config), context)
    steps = [after - before for before, after in pairwise(at)]
    send.send((statistics.median(steps[_WARM:]), clock[1] - clock[0]))


if __name__ == "__main__":
    main()
