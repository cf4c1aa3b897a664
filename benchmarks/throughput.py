"""The default run against a hand-written loop, and the seconds that a run costs beyond training.

    python benchmarks/throughput.py [--repeats 5] [--epochs 3] [--hand-micro-batch 1920]

Alternates in one call, each in fresh one-thread processes: (A) the default run through the sweep's
own launcher, and after it one that differs in its rate and finds the views made; (B) a plain
PyTorch loop with the same model (plain BatchNorm), micro-batch, accumulation and views, on tensors
in memory; (C) the same loop with the same BatchNorm span. The loops may have another micro-batch.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from sweeper.commands.show_plan import plan_grid
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import claim_tasks
from sweeper.store.ledger import Ledger

MICRO_BATCH = 3840  # of the small network by default
RATES = ("0.025", "0.02")
WORDS = [
    "batch=3840", f"micro_batch={MICRO_BATCH}", "warmup=0", "schedule=constant", "order=grid",
    f"base_lr={','.join(RATES)}",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hand-micro-batch", type=int, default=MICRO_BATCH)
    given = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    _sweep(epochs=1)  # warms the fork server
    ours, further, beyond, plain, spanned = [], [], [], [], []
    for _ in range(given.repeats):
        (first, second), seconds = _sweep(epochs=given.epochs)
        ours.append(first)
        further.append(second)
        beyond.append(seconds)
        loop = (given.epochs, given.hand_micro_batch)
        plain.append(_hand_loop(context, *loop, span=None))
        spanned.append(_hand_loop(context, *loop, span=128))
    _report("default run", ours)
    _report("default run, views are made", further)
    _report("hand loop, plain BatchNorm", plain)
    _report("hand loop, BatchNorm span 128", spanned)
    print(f"ratio to the plain hand loop   {_ratio(ours, plain):.2f}")
    print(f"ratio to the spanned hand loop {_ratio(ours, spanned):.2f}")
    print(f"the same where views are made  {_ratio(further, plain):.2f}")
    print(f"                               {_ratio(further, spanned):.2f}")
    print(f"seconds beyond training, a further run: median {statistics.median(beyond):.2f}")


def _sweep(*, epochs: int) -> tuple[list[float], float]:
    """Examples per second of each run; seconds of a run, claim to row, beyond training."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*WORDS, f"epochs={epochs}", f"results={folder}/results"]
        planned, ledger = plan_grid(words, config_dir=None)
        ledger.prepare()
        to_do = claim_tasks(planned, ledger, retry=None, rerun=None)
        started = time.perf_counter()
        for _ in run_here(to_do, ledger, Machine(cores=1)):
            pass
        seconds = time.perf_counter() - started
        read = Ledger(Path(folder) / "results").rows
        ids = [spec.run_id for spec in planned.specs]
        rows = read(ids, ["base_lr", "examples_per_s", "train_s"]).values()
        by_rate = {str(row["base_lr"]): row["examples_per_s"] for row in rows}
        beyond = seconds - sum(row["train_s"] for row in rows)
        return [by_rate[rate] for rate in RATES], beyond / len(rows)


def _hand_loop(context, epochs: int, micro_batch: int, *, span: int | None) -> float:
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=hand_loop, args=(send, epochs, micro_batch, span))
    process.start()
    speed = receive.recv()
    process.join()
    return speed


def hand_loop(send, epochs: int, micro_batch: int, span: int | None) -> None:
    import torch
    from torch.nn import functional

    from lightning_modules.data.digits import Digits
    from lightning_modules.data.randomness import epoch_order
    from lightning_modules.layers.batch_position import StepPosition
    from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span
    from lightning_modules.models.small_cnn import SmallCNN

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Digits(num_train_examples=61_440, num_val_examples=360, validation_fold=0)
    model = SmallCNN((1, 8, 8), 10, channels=[16, 32], hidden=64)
    position = StepPosition()
    if span:
        model = fix_batchnorm_span(model, span=span, position=position)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    started = time.perf_counter()
    for epoch in range(epochs):
        data.set_epoch(0, epoch)
        order = torch.from_numpy(epoch_order(0, epoch, 61_440))
        micro_batches = order.view(16, -1, micro_batch)
        for index, step in enumerate(micro_batches):
            for micro_step, examples in enumerate(step):
                images, labels = data.train_examples(examples)
                first = index * 3840 + micro_step * micro_batch
                position.move(epoch=epoch, step=index, first_example=first, examples=micro_batch)
                images = images.contiguous(memory_format=torch.channels_last)
                (functional.cross_entropy(model(images), labels) / len(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        for layer in model.modules():
            if hasattr(layer, "merge_ranks"):
                layer.merge_ranks(480)
    send.send(epochs * 61_440 / (time.perf_counter() - started))


def _report(what: str, speeds: list[float]) -> None:
    shown = ", ".join(f"{speed:,.0f}" for speed in speeds)
    print(f"{what:32} {statistics.median(speeds):10,.0f} examples/s (of {shown})")


def _ratio(first: list[float], second: list[float]) -> float:
    """Median of the ratios of neighbours in time."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
