"""What only a GPU can show, measured on the first one of this machine; on a CPU in small.

    python benchmarks/gpu.py [--out benchmarks] [--only speed,memory,...]

Writes a table with the device's name, gpu-NAME.md. Each training is a sweep of its own, started as
a user would; hand loops run in fresh processes. All data are random, so nothing is downloaded.
"""

import argparse
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span
from lightning_modules.layers.keyed_dropout import key_dropout
from lightning_modules.models.library import torchvision_model
from sweeper import CONFIG_FOLDER

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
#: Dense peak of bf16 (V100: fp16), from NVIDIA's data sheets [TFLOP/s].
PEAKS = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "V100": 125}
TINY = ["model.channels=[4,8]", "data.num_train_examples=7680", "warmup=0", "schedule=constant"]


class Line(NamedTuple):
    """A line of the table."""

    what: str
    measured: str
    compared: str = ""


def sweep(*words: str, memory_gib: float | None = None) -> pd.DataFrame:
    """The runs table after one command; `memory_gib` limits each process's address space."""
    with tempfile.TemporaryDirectory() as folder:
        _start(folder, *words, memory_gib=memory_gib).wait()
        return _rows(folder)


def _start(
    folder: str, *words: str, command: Sequence[str] = ("-m",), memory_gib: float | None = None
) -> subprocess.Popen[bytes]:
    where = ["accelerator=gpu"] if ON_GPU else []
    given = [sys.executable, "-m", "sweeper", *command, *where, *words, f"results={folder}"]
    if memory_gib:
        given = ["sh", "-c", f'ulimit -v {int(memory_gib * 2**20)}; exec "$@"', "sh", *given]
    return subprocess.Popen(given, stdout=sys.stderr, start_new_session=True)


def _rows(folder: str) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in Path(folder, "runs").glob("*.parquet")])


def speed() -> Iterator[Line]:
    """ResNets against a hand loop: examples per second, and the share of the dense peak."""
    cases = [("resnet50", 224, 256), ("resnet18", 32, 1024)] if ON_GPU else [("resnet18", 16, 4)]
    for model, size, micro_batch in cases:
        steps = 40 if ON_GPU else 2
        ours = _our_speed(model, size, micro_batch, steps)
        hand = _in_fresh_process(_hand_loop, model, size, micro_batch, steps)
        flops = _flops_per_example(model, size)
        reached = ours * flops / 1e12
        peak = next((tflops for name, tflops in PEAKS.items() if name in _name()), None)
        share = f", {reached / peak:.0%} of dense peak" if peak else ""
        yield Line(
            f"{model}, {size} x {size}, bf16, micro-batch {micro_batch}",
            f"{ours:,.0f} examples/s, {reached:.3g} TFLOP/s{share}",
            f"{ours / hand:.2f} of a hand loop ({hand:,.0f})",
        )


def _our_speed(model: str, size: int, micro_batch: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        batch = 2 * micro_batch
        _start(
            folder, f"model={model}", "data=synthetic", f"data.shape=[3,{size},{size}]",
            f"data.num_train_examples={batch * steps}", f"data.num_val_examples={micro_batch}",
            "precision=bf16-mixed", f"batch={batch}", f"micro_batch={micro_batch}",
            f"bn_span={micro_batch}", "warmup=0", "schedule=constant", "epochs=3",
        ).wait()  # fmt: skip
        (path,) = Path(folder, "curves").glob("*.parquet")
        curve = pd.read_parquet(path).sort_values("epoch")
    first, last = curve.iloc[0], curve.iloc[-1]  # the first epoch warms the device
    return (last.examples_seen - first.examples_seen) / (last.elapsed_s - first.elapsed_s)


def _model(name: str, size: int) -> nn.Module:
    return torchvision_model(
        (3, size, size), 1000, name=name, stem="auto", head_std=None, settings={}
    )


def _hand_loop(send, name: str, size: int, micro_batch: int, steps: int) -> None:
    """Two micro-batches a step, as ours, of data that lie on the device."""
    torch.set_num_threads(1)  # as a run
    model = _model(name, size).to(DEVICE, memory_format=torch.channels_last)
    images = torch.randn(micro_batch, 3, size, size, device=DEVICE)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (micro_batch,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    started = 0.0
    for step in range(3 * steps):
        if step == steps:
            _wait()
            started = time.perf_counter()
        for _ in range(2):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(images), labels)
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    _wait()
    send.send(4 * steps * micro_batch / (time.perf_counter() - started))


def _in_fresh_process(function: Callable[..., None], *given: object) -> float:
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(send, *given))
    process.start()
    measured = receive.recv()
    process.join()
    return measured


def _flops_per_example(name: str, size: int) -> float:
    """Floating-point operations of a forward and a backward pass, a multiply-add being two."""
    model = _model(name, size)
    with FlopCounterMode(display=False) as counted:
        model(torch.randn(2, 3, size, size)).sum().backward()
    return counted.get_total_flops() / 2


def memory() -> Iterator[Line]:
    """Peak memory at growing micro-batches, as predicted and as measured."""
    size, micro_batches = (224, (32, 64, 128)) if ON_GPU else (32, (8, 16))
    model = "resnet50" if ON_GPU else "resnet18"
    for micro_batch in micro_batches:
        words = [
            f"model={model}", "data=synthetic", f"data.shape=[3,{size},{size}]", "epochs=1",
            f"data.num_train_examples={4 * micro_batches[-1]}", "data.num_val_examples=8",
            f"batch={micro_batches[-1]}", f"micro_batch={micro_batch}", "bn_span=8", "warmup=0",
            "schedule=constant",
        ]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            _start(folder, *words, command=("plan", "--memory")).wait()  # what the row then has
            _start(folder, *words).wait()
            row = _rows(folder).iloc[0]
        error = row.predicted_memory_gib / row.peak_memory_gib - 1
        yield Line(
            f"{model}, micro-batch {micro_batch}", f"{row.peak_memory_gib:.2f} GiB",
            f"{row.predicted_memory_gib:.2f} GiB predicted ({error:+.0%})",
        )  # fmt: skip


def out_of_memory() -> Iterator[Line]:
    """A micro-batch that does not fit: the run goes on with half of it until one does."""
    batch, size = (4096, 224) if ON_GPU else (2048, 16)
    row = sweep(
        "model=resnet50" if ON_GPU else "model=resnet18", "data=synthetic",
        f"data.shape=[3,{size},{size}]", f"data.num_train_examples={batch}", "epochs=1",
        "data.num_val_examples=8", f"batch={batch}", f"micro_batch={batch}", "bn_span=8",
        "warmup=0", "schedule=constant", memory_gib=None if ON_GPU else 5,
    ).iloc[0]  # fmt: skip
    yield Line(
        f"batch {batch} in one micro-batch, after a real out-of-memory",
        f"{row.outcome} at micro-batch {row.micro_batch}, attempt {row.attempt}",
        f"batches of {row.realised_batch_min} to {row.realised_batch_max} examples",
    )


def layers() -> Iterator[Line]:
    """Keyed dropout and ghost BatchNorm against torch's own, forward and backward."""
    shape = (256, 64, 56, 56) if ON_GPU else (8, 16, 8, 8)
    position = StepPosition()
    pairs = {
        "keyed dropout": (
            key_dropout(nn.Dropout(0.1), seed=0, position=position), nn.Dropout(0.1)
        ),
        "ghost BatchNorm, span of an eighth": (
            fix_batchnorm_span(nn.BatchNorm2d(shape[1]), span=shape[0] // 8, position=position),
            nn.BatchNorm2d(shape[1]),
        ),
    }  # fmt: skip
    for what, (ours, torchs) in pairs.items():
        x = torch.randn(shape, device=DEVICE, requires_grad=True)
        times: tuple[list[float], list[float]] = ([], [])
        for step in range(30):
            position.move(epoch=0, step=step, first_example=step * shape[0], examples=shape[0])
            for layer, seconds in zip((ours.to(DEVICE), torchs.to(DEVICE)), times, strict=True):
                _wait()
                started = time.perf_counter()
                layer(x).sum().backward()
                _wait()
                seconds.append(time.perf_counter() - started)
        mine, its = map(statistics.median, times)
        yield Line(f"{what}, {list(shape)}", f"{1e3 * mine:.3g} ms", f"{mine / its:.2f} of torch's")


def combinations() -> Iterator[Line]:
    """Every precision with every optimizer, two steps each."""
    optimizers = sorted(path.stem for path in (CONFIG_FOLDER / "optimizer").glob("*.yaml"))
    optimizers.remove("module")
    precisions = ["32-true", "64-true", "bf16-mixed", *(["16-mixed"] if ON_GPU else [])]
    rows = sweep(
        *TINY, f"optimizer={','.join(optimizers)}", f"precision={','.join(precisions)}",
        "batch=3840", "base_lr=0.001", "epochs=1", "keep_going=true",
    )  # fmt: skip
    bad = rows[rows["outcome"] != "finished"]
    yield Line(
        f"{len(precisions)} precisions x {len(optimizers)} optimizers, 2 steps",
        f"{len(rows) - len(bad)} of {len(precisions) * len(optimizers)} finished",
        "; ".join(f"{row.optimizer} {row.precision}: {row.reason}" for row in bad.itertuples()),
    )


def same_bits() -> Iterator[Line]:
    """`reproducible=true` on other ranks, or again; a run that was killed and taken up again."""
    ranks = (1, 2) if not ON_GPU or torch.cuda.device_count() > 1 else (1, 1)
    words = [*TINY, "reproducible=true", "batch=3840", "epochs=2", "micro_batch=640"]
    losses = [sweep(*words, f"devices={n}")["val_loss"].item() for n in ranks]
    yield Line(
        f"reproducible=true on {ranks[0]} rank and on {ranks[1]}",
        f"validation losses {losses[0]!r} and {losses[1]!r}",
        "same bits" if losses[0] == losses[1] else "NOT the same bits",
    )
    words = [*TINY, "reproducible=true", "batch=256", "micro_batch=256", "epochs=6"]
    undisturbed = sweep(*words)["val_loss"].item()
    with tempfile.TemporaryDirectory() as folder:
        killed = _start(folder, *words)
        while killed.poll() is None and not list(Path(folder).glob("attempts/*/checkpoint.ckpt")):
            time.sleep(0.05)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        _start(folder, *words).wait()
        row = _rows(folder).iloc[-1]
    same = "same bits as" if row.val_loss == undisturbed else "NOT the same bits as"
    yield Line(
        "SIGKILL after a checkpoint, and the command repeated",
        f"{row.outcome} in attempt {row.attempt}", f"{same} the undisturbed run",
    )  # fmt: skip


def ranks() -> Iterator[Line]:
    """Two ranks against one, in float64."""
    if ON_GPU and torch.cuda.device_count() < 2:
        yield Line("two ranks, NCCL", "not measured: one GPU")
        return
    words = [*TINY, "batch=3840", "epochs=2", "precision=64-true", "micro_batch=640"]
    one, two = (sweep(*words, f"devices={n}")["val_loss"].item() for n in (1, 2))
    yield Line(
        f"two ranks against one, float64, {'NCCL' if ON_GPU else 'gloo'}",
        f"validation losses differ by {abs(one - two) / one:.1e}",
    )


SECTIONS = {
    f.__name__: f for f in (speed, memory, out_of_memory, layers, combinations, same_bits, ranks)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=Path(__file__).parent, type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    given = parser.parse_args()
    lines = [
        f"# {_name()}", "",
        f"torch {torch.__version__}; made by `python benchmarks/gpu.py`.", "",
        "| what | measured | compared |", "| --- | --- | --- |",
    ]  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"gpu-{re.sub('[^A-Za-z0-9]+', '-', _name())}.md"
    for section in given.only.split(","):
        for line in SECTIONS[section]():
            lines.append(f"| {' | '.join(line)} |")
            print(lines[-1], flush=True)
            path.write_text("\n".join([*lines, ""]))
    print(f"wrote {path}")


def _name() -> str:
    return torch.cuda.get_device_name(DEVICE) if ON_GPU else "a CPU, in small"


def _wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
