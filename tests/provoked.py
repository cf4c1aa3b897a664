"""Models and data that end badly on purpose, named by `_target_` in tests of outcomes."""

import ctypes
import importlib
import math
import os
import signal
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from lightning_modules import worker
from lightning_modules.data.batches import MicroBatches
from lightning_modules.data.digits import Digits
from lightning_modules.models.small_cnn import SmallCNN
from sweeper.spec.worker_args import GRACEFUL_STOP, WorkerArgs


class _Net(nn.Module):
    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), num_classes)
        self.forwards = 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += self.training
        return self.linear(images.flatten(1))


class Plain(_Net):
    """A linear classifier: nothing happens."""


class Unused(_Net):
    """A linear classifier with a layer that no pass uses, as the experts that got no example."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.expert = nn.Linear(3, 3)


class Dropping(nn.Module):
    """BatchNorm and every kind of dropout, in few layers."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Dropout2d(0.1),
            StochasticDepth(0.1, "row"),
            StochasticDepth(0.1, "batch"),
            nn.Flatten(),
            nn.Linear(4 * height * width, 32),
            nn.BatchNorm1d(32),
            nn.Dropout(0.3),
            nn.AlphaDropout(0.1),
            nn.Linear(32, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Segfaulting(_Net):
    """Reads address 0."""

    def forward(self, images: Tensor) -> Tensor:
        return images + len(ctypes.string_at(0))


class Raising(_Net):
    """Fails with a message in its third micro-batch."""

    def forward(self, images: Tensor) -> Tensor:
        if self.forwards == 2:
            msg = "the third micro-batch is cursed"
            raise RuntimeError(msg)
        return super().forward(images)


class Exploding(_Net):
    """Its logits overflow from the sixth micro-batch on."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (float("inf") if self.forwards >= 5 else 1.0)


class Greedy(_Net):
    """Asks for a petabyte."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + torch.empty(2**50).sum()


class GreedyAboveHalf(_Net):
    """Asks for a petabyte in its 51st micro-batch, unless that is of at most 384 examples."""

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 384 and self.forwards >= 50:
            return super().forward(images) + torch.empty(2**50).sum()
        return super().forward(images)


class Hungry(_Net):
    """Holds 3 MiB for each example that it trains on until the backward pass is over."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        if not self.training:
            return logits
        held = torch.ones(len(images), 2**18) * self.scale * self.scale
        return logits + held.mean()


class Sleeping(_Net):
    """Never finishes its first forward pass in a run."""

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(3600 if "LOCAL_RANK" in os.environ else 0)  # plans try a step too
        return super().forward(images)


class Suicidal(_Net):
    """Kills its own process with SIGKILL in its third forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        if self.forwards == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


class Needing(_Net):
    """Fails while a file is missing."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int, path: str) -> None:
        super().__init__(input_shape, num_classes)
        self.path = path

    def forward(self, images: Tensor) -> Tensor:
        os.stat(self.path)  # noqa: PTH116  fails if it is missing
        return super().forward(images)


class OneRankRaising(_Net):
    """Fails on rank 1 alone, while rank 0 waits for its gradients."""

    def forward(self, images: Tensor) -> Tensor:
        if os.environ["RANK"] == "1":
            msg = "rank 1 is cursed"
            raise RuntimeError(msg)
        return super().forward(images)


class ShortChanging(Digits):
    """Serves one example too few in every micro-batch."""

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        return super().train_examples(examples[:-1])


class _ShortMicroBatches(MicroBatches):
    """Leaves out the last three micro-batches of an epoch, and says so to Lightning."""

    def __len__(self) -> int:
        return super().__len__() - 3

    def positions(self, first_step: int = 0) -> Iterator[Tensor]:
        return islice(super().positions(first_step), len(self))


class ShortWindow(Digits):
    """Has epochs that are no whole number of accumulation windows, which Lightning accepts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        loaders = importlib.import_module("lightning_modules.data.loaders")
        loaders.MicroBatches = _ShortMicroBatches


class Padded(Digits):
    """Fills micro-batches up to a multiple of 500 by repeating examples, as samplers fill ranks."""

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        missing = -len(examples) % 500
        return super().train_examples(torch.cat([examples, examples[:missing]]))


class Slow(_Net):
    """Takes some time for each micro-batch, without a processor."""

    sleeps = True

    def __init__(
        self, input_shape: tuple[int, int, int], num_classes: int, seconds: float = 0.01
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.seconds = seconds

    def forward(self, images: Tensor) -> Tensor:
        if self.training and self.forwards == 0:
            print("training", flush=True)  # noqa: T201
        time.sleep(self.seconds if self.training and self.sleeps else 0)
        return super().forward(images)


class Showing(SmallCNN):
    """Prints once into its rank's log which GPUs it sees and which is its own."""

    has_shown = False

    def forward(self, images: Tensor) -> Tensor:
        if not self.has_shown:
            self.has_shown = True
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            print(f"sees GPUs {visible}, local rank {os.environ['LOCAL_RANK']}", flush=True)  # noqa: T201
        return super().forward(images)


class UnreachableLogger:
    """A server that is not there."""

    def __init__(self, **settings: object) -> None:
        msg = f"no route to host ({settings})"
        raise ConnectionError(msg)


def train_until(epoch: int, args: WorkerArgs) -> None:
    """First function of a worker whose run is stopped gracefully when an epoch is complete.

    Args:
        epoch: 1-based; 0 stops it after its first step.
        args: of the worker.
    """
    stop, append = Path(args.folder) / GRACEFUL_STOP, worker.append_rows

    def append_and_stop(progress: Path, rows: list[dict[str, Any]]) -> None:
        append(progress, rows)
        if rows and rows[-1]["epoch"] >= epoch:
            stop.touch()

    worker.append_rows = append_and_stop
    if epoch == 0:
        stop.touch()
    worker.work(args)


def kill_after(epoch: int, args: WorkerArgs) -> None:
    """First function of a worker that ends by SIGKILL once a 1-based epoch is saved."""
    append = worker.append_rows

    def append_and_die(progress: Path, rows: list[dict[str, Any]]) -> None:
        append(progress, rows)
        if rows and rows[-1]["epoch"] >= epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    worker.append_rows = append_and_die
    worker.work(args)


def train_awake(args: WorkerArgs) -> None:
    """First function of a worker that trains `Slow` as any other model."""
    Slow.sleeps = False
    worker.work(args)
