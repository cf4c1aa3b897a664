"""A step of a sharded GPT: `strategy=fsdp`, Lightning's own strategy, and a loop by hand.

    python -m benchmarks.sharded [--repeats 5] [--steps 30] [--width 256]

Two ranks of one thread each on this machine, with gloo. All shard each layer and the rest, in
float32 under AdamW, in micro-batches of 8 sequences of 128 bytes on each rank, one a step. They
take turns, each in fresh processes. Processor seconds of a step are compared, the median of those
after the first four on rank 0: they say the same on a busy machine.

The loop has its tokens in memory and does nothing but the step. Lightning's strategy has a plain
Trainer without logs and checkpoints. A run also counts its examples and checks its weights, losses
and gradients.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.reproducible import _spread
from sweeper.commands.show_plan import plan_grid

RANKS, MICRO_BATCH, LENGTH, DEPTH = 2, 8, 128, 6
_WARM = 4  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=256)
    given = parser.parse_args()
    multiprocessing.set_forkserver_preload(["lightning_modules.train"])
    measured = [
        {arm: _run(arm, given.steps + _WARM, given.width) for arm in ARMS}
        for _ in range(given.repeats)
    ]
    print("| | processor seconds of a step | ratio to the loop |")
    print("| --- | --- | --- |")
    for arm in ARMS:
        seconds = [one[arm] for one in measured]
        ratios = [one[arm] / one["loop"] for one in measured]
        print(f"| {arm} | {_spread(seconds, '.3f')} | {_spread(ratios, '.2f')} |")


def _run(arm: str, steps: int, width: int) -> float:
    """Processor seconds of a step on rank 0."""
    words = [
        *("model=gpt", f"model.width={width}", f"model.depth={DEPTH}", f"data.length={LENGTH}"),
        *(f"batch={RANKS * MICRO_BATCH}", f"micro_batch={MICRO_BATCH}", f"devices={RANKS}"),
        *("strategy=fsdp", "epochs=1", "warmup=0", "schedule=constant", "accelerator=cpu"),
        *(f"data.num_train_examples={steps * RANKS * MICRO_BATCH}", "data.num_val_examples=16"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        planned, _ = plan_grid([*words, f"results={folder}/results"], config_dir=None)
        context = multiprocessing.get_context("forkserver")
        receive, send = context.Pipe(duplex=False)
        given = (send, arm, planned.specs[0].config.resolved, folder)
        ranks = [context.Process(target=train_rank, args=(*given, n)) for n in range(RANKS)]
        for process in ranks:
            process.start()
        at = receive.recv()
        for process in ranks:
            process.join()
    return statistics.median([after - before for before, after in pairwise(at)][_WARM:])


def train_rank(send: Any, arm: str, config: dict[str, Any], folder: str, rank: int) -> None:
    import torch
    import torch.distributed as dist

    number = str(rank)
    os.environ.update(LOCAL_RANK=number, NODE_RANK="0", RANK=number, WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/rendezvous", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    at = ARMS[arm](config, Path(folder, f"rank-{rank}"))
    if rank == 0:
        send.send(at)
    dist.barrier()
    dist.destroy_process_group()


def take_run(config: dict[str, Any], folder: Path) -> list[float]:
    """The times after each step of a run."""
    from pytorch_lightning.callbacks import LambdaCallback

    from lightning_modules.train import RankContext, train
    from sweeper.spec.run_spec import run_spec

    at: list[float] = []
    note = LambdaCallback(on_train_batch_end=lambda *_: at.append(time.process_time()))
    folder.mkdir()
    context = RankContext(
        rank=int(os.environ["RANK"]),
        folder=folder,
        checkpoint=folder.parent / "checkpoint.ckpt",
        on_epoch=lambda _: None,
        fit=lambda trainer, *_: trainer.callbacks.insert(-1, note),
    )
    train(run_spec(config), context)
    return at


def make_batches(config: dict[str, Any]) -> list[Any]:
    """Tokens and what follows them, of each step of this rank."""
    import torch

    steps = config["data"]["num_train_examples"] // (RANKS * MICRO_BATCH)
    texts = torch.randint(256, (steps, MICRO_BATCH, LENGTH + 1))
    return [(text[:, :-1], text[:, 1:]) for text in texts]


def make_model(config: dict[str, Any]) -> Any:
    from lightning_modules.models.gpt import GPT

    width, heads = config["model"]["width"], config["model"]["heads"]
    return GPT((LENGTH,), 256, width=width, depth=DEPTH, heads=heads)


def shard(model: Any, mesh: Any) -> None:
    """As `strategy=fsdp` does, and the tutorials of PyTorch."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def make_optimizer(model: Any) -> Any:
    from torch.optim import AdamW

    return AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def loss_of(model: Any, batch: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def take_loop(config: dict[str, Any], folder: Path) -> list[float]:
    """The times after each step of a plain loop."""
    del folder
    from torch.distributed.device_mesh import init_device_mesh

    model, at = make_model(config), list[float]()
    shard(model, init_device_mesh("cpu", (RANKS,)))
    optimizer = make_optimizer(model)
    for batch in make_batches(config):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        at.append(time.process_time())
    return at


def take_lightning(config: dict[str, Any], folder: Path) -> list[float]:
    """The times after each step of Lightning's own strategy."""
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import LambdaCallback
    from pytorch_lightning.plugins.environments import LightningEnvironment
    from pytorch_lightning.strategies import ModelParallelStrategy
    from torch.utils.data import DataLoader

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(config)

        def configure_model(self) -> None:
            shard(self.model, self.device_mesh["data_parallel"])

        def training_step(self, batch: Any) -> Any:
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> Any:
            return make_optimizer(self.model)

    at: list[float] = []
    note = LambdaCallback(on_train_batch_end=lambda *_: at.append(time.process_time()))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1),
        plugins=[LightningEnvironment()],
        max_epochs=1,
        callbacks=[note],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), DataLoader(make_batches(config), batch_size=None))  # type: ignore
    return at


ARMS = {"loop": take_loop, "Lightning's strategy": take_lightning, "strategy=fsdp": take_run}

if __name__ == "__main__":
    main()
