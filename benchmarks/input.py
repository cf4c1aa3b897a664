"""Input speed: examples per second delivered, against a plain pipeline and against training.

Prints, for small images in memory (CIFAR-10's size) and for a folder of JPEGs (ImageNet's size):
examples per second that our data deliver to the device, that a plain torchvision + DataLoader
pipeline delivers to it, measured in turns in this process, and that a model trains on.
On a GPU all end on the GPU, and training is bf16 and channels-last.

    python benchmarks/input.py [--repeats 5] [--workers 2] [--images 512]
"""

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from lightning_modules.data.large_images import LargeImages
from lightning_modules.data.small_images import SmallImages
from lightning_modules.models.library import torchvision_model
from lightning_modules.models.residual import SmallResNet

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MICRO_BATCH = 256
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Epoch = Callable[[], Iterable[tuple[Tensor, Tensor]]]


class InMemory(Dataset[tuple[Tensor, int]]):
    """What torchvision.datasets.CIFAR10 does with its array: an image at a time, through PIL."""

    def __init__(self, pixels: np.ndarray, transform: Callable[[Image.Image], Tensor]) -> None:
        self._pixels, self._transform = pixels, transform

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(Image.fromarray(self._pixels[index])), index % 10


def main() -> None:
    """Measure both kinds of data and print two rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--images", type=int, default=512, help="JPEGs of the ImageNet-like tree")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"device {DEVICE.type}, {options.workers} workers, median of {options.repeats}")
    print(f"{'data':<26}{'ours':>10}{'plain':>10}{'ours/plain':>12}{'trained':>10}{'ours/tr.':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("CIFAR-10-like, in memory", small), ("ImageNet-like, JPEGs", large)):
            ours, plain, trained = make(Path(folder), options)
            fast, slow = in_turns(ours, plain, options.repeats)
            rates = f"{fast:>10,.0f}{slow:>10,.0f}{fast / slow:>12.2f}"
            print(f"{name:<26}{rates}{trained:>10,.1f}{fast / trained:>10.1f}", flush=True)


def small(folder: Path, options: argparse.Namespace) -> tuple[Epoch, Epoch, float]:
    """Our in-memory images, the plain pipeline over the same ones, and ResNet-8's training."""
    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 32, 32, 3), dtype=np.uint8)
    for name, num in (("train", len(pixels)), ("test", 10)):
        images = [{"bytes": png(image), "path": None} for image in pixels[:num]]
        table = pa.table({"image": images, "label": [i % 10 for i in range(num)]})
        pq.write_table(table, folder / f"{name}.parquet")
    data = SmallImages(
        name="made", root=str(folder), source="parquet", download=False, shape=[3, 32, 32],
        num_classes=10, num_train_examples=len(pixels), num_val_examples=10, padding=4, flip=True,
        mean=CIFAR_MEAN, std=CIFAR_STD,
    )  # fmt: skip
    data.settle(DEVICE, ranks_on_node=1)
    data.set_epoch(0, 0)
    transform = transforms.Compose([
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(CIFAR_MEAN, CIFAR_STD),
    ])  # fmt: skip
    plain = loader(InMemory(pixels, transform), options.workers)
    model = SmallResNet(
        (3, 32, 32), 10, name="resnet8", blocks=1, channels=[16, 32, 64], stem_stride=1
    )
    return (
        lambda: map(data.train_examples, torch.randperm(len(pixels)).split(MICRO_BATCH)),
        lambda: on_device(plain),
        trained_per_s(model, (3, 32, 32)),
    )


def large(folder: Path, options: argparse.Namespace) -> tuple[Epoch, Epoch, float]:
    """Our streamed images, ImageFolder's over the same tree, and ResNet-50's training."""
    root = folder / "tree"
    make_tree(root, options.images)
    data = LargeImages(
        name="made", root=str(root), source="folder", num_workers=options.workers, size=224,
        resize=256, num_classes=2, num_train_examples=options.images, num_val_examples=2,
    )  # fmt: skip
    data.settle(DEVICE, ranks_on_node=1)
    data.set_epoch(0, 0)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ])  # fmt: skip
    plain = loader(ImageFolder(str(root / "train"), transform), options.workers)
    model = torchvision_model(
        (3, 224, 224), 1000, name="resnet50", stem="imagenet", head_std=None, settings={}
    )
    return (
        lambda: data.train_stream(torch.randperm(options.images).split(MICRO_BATCH)),
        lambda: on_device(plain),
        trained_per_s(model, (3, 224, 224)),
    )


def loader(dataset: Dataset[tuple[Tensor, int]], workers: int) -> DataLoader[tuple[Tensor, int]]:
    """The usual DataLoader."""
    return DataLoader(
        dataset, batch_size=MICRO_BATCH, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0, pin_memory=DEVICE.type == "cuda",
    )  # fmt: skip


def on_device(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches where training wants them."""
    for inputs, labels in batches:
        yield inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)


def in_turns(ours: Epoch, plain: Epoch, repeats: int) -> tuple[float, float]:
    """Median examples per second of both, measured in turns after one epoch each to warm up."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for epoch, measured in zip((ours, plain), rates, strict=True):
            measured.append(examples_per_s(epoch))
    return statistics.median(rates[0][1:]), statistics.median(rates[1][1:])


def examples_per_s(epoch: Epoch) -> float:
    """Examples per second of one epoch."""
    started = time.perf_counter()
    examples = sum(len(labels) for _, labels in epoch())
    synchronise()
    return examples / (time.perf_counter() - started)


def trained_per_s(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Examples per second of forward, backward and an SGD step, without any input pipeline."""
    on_gpu = DEVICE.type == "cuda"
    num = MICRO_BATCH if on_gpu or shape[1] < 64 else 8
    model = model.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(num, *shape, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.zeros(num, dtype=torch.int64, device=DEVICE)
    rates: list[float] = []
    for _ in range(20 if on_gpu else 4):
        started = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        synchronise()
        rates.append(num / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def make_tree(root: Path, num_images: int) -> None:
    """Two classes of JPEGs of 500 x 375 pixels, of about 65 kB, as smooth as photographs."""
    rng = np.random.default_rng(0)
    for split, num in (("train", num_images), ("val", 2)):
        for index in range(num):
            folder = root / split / f"class{index % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
            noisy = (smooth + rng.integers(-12, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"{index}.JPEG", quality=92)


def png(pixels: np.ndarray) -> bytes:
    """The bytes of a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def synchronise() -> None:
    """Wait for the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
