"""Wall seconds of the demo grid: this sweep against what one would otherwise pick.

    python benchmarks/peers.py [--epochs 30] [--repeats 1]

Alternates in one call, two one-thread trainings at a time, imports and start-up included: (A) this
sweep; (B) the Hydra joblib launcher over a Lightning application (peers_lightning.py); (C) Ray Tune
with the same module (peers_ray.py), if it is installed; (D) a plain PyTorch loop in two processes
that import once. The peers use the sweep's micro-batches, plain BatchNorm and fixed views; they
count no batches, keep no ledger and write no tables.
"""

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

MICRO_BATCH = 3840  # of the sweep, by default
BATCHES, WARMUPS = (3840, 30_720), (0, 5, 10, 20)
GRID = ["batch=3840,30720", "warmup=0,5,10,20"]
LIGHTNING, RAY = (Path(__file__).with_name(f"peers_{name}.py") for name in ("lightning", "ray"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    kinds = {
        "sweeper": _sweeper,
        "Hydra joblib launcher, Lightning": _joblib,
        "Ray Tune, Lightning": _ray,
        "hand loop, two processes": _hand_loops,
    }
    if importlib.util.find_spec("ray") is None:
        print("Ray Tune is left out: pip install 'ray[tune]' adds it.")
        del kinds["Ray Tune, Lightning"]
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(given.repeats):
        for kind, call in kinds.items():
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                call(given.epochs, folder)
                seconds[kind].append(time.perf_counter() - started)
    ours = statistics.median(seconds["sweeper"])
    for kind, measured in seconds.items():
        median = statistics.median(measured)
        shown = ", ".join(f"{second:.1f}" for second in measured)
        print(f"{kind:34} {median:7.1f} s, {median / ours:4.2f} times ours (of {shown})")


def _sweeper(epochs: int, folder: str) -> None:
    # The schedule's milestones lie at 24 and 28 of 30 epochs; shorter runs keep a constant rate.
    schedule = [] if epochs == 30 else ["schedule=constant"]
    words = ["-m", *GRID, f"epochs={epochs}", *schedule, f"results={folder}/results"]
    if epochs < 30:
        words[2] = "warmup=0,1,2,3"
    _run([sys.executable, "-m", "sweeper", *words])


def _joblib(epochs: int, folder: str) -> None:
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"hydra.sweep.dir={folder}"]
    _run([sys.executable, str(LIGHTNING), "-m", *launcher, *GRID, f"epochs={epochs}"])


def _ray(epochs: int, folder: str) -> None:
    _run([sys.executable, str(RAY), str(epochs), folder])


def _run(command: list[str]) -> None:
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": path})


def _hand_loops(epochs: int, folder: str) -> None:
    del folder
    points = [(batch, warmup) for batch in BATCHES for warmup in WARMUPS]
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=hand_loop, args=(points[rank::2], epochs)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def hand_loop(points: list[tuple[int, int]], epochs: int) -> None:
    import torch
    from torch.nn import functional

    from lightning_modules.data.digits import Digits
    from lightning_modules.models.small_cnn import SmallCNN

    torch.set_num_threads(1)
    data = Digits(num_train_examples=61_440, num_val_examples=360, validation_fold=0)
    data.set_epoch(0, 0)
    images, labels = data.train_examples(torch.arange(61_440))
    val_images, val_labels = data.val_examples(0, 360)
    for batch, warmup in points:
        torch.manual_seed(0)
        model = SmallCNN((1, 8, 8), 10, channels=[16, 32], hidden=64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        steps = 61_440 // batch
        for step in range(epochs * steps):
            if step % steps == 0:
                order = torch.randperm(61_440).view(steps, -1, MICRO_BATCH)
            climbed = min(1.0, (step + 1) / (warmup * steps)) if warmup else 1.0
            decay = 0.1 ** sum(step >= milestone * steps for milestone in (24, 28))
            for group in optimizer.param_groups:
                group["lr"] = 0.025 * (1 + climbed * (batch / 256 - 1)) * decay
            micro_batches = order[step % steps]
            for examples in micro_batches:
                loss = functional.cross_entropy(model(images[examples]), labels[examples])
                (loss / len(micro_batches)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % steps == 0:
                model.eval()
                with torch.no_grad():
                    (model(val_images).argmax(1) == val_labels).float().mean().item()
                model.train()


if __name__ == "__main__":
    main()
