"""A user's module through a sweep against the same module under a plain Trainer.

    python benchmarks/own_module.py [--repeats 5] [--epochs 4] [--project photos]

Alternates in one call, each in fresh processes with one thread per rank: (A) the project of
examples/ through the sweep's own launcher, with its own optimizer; (B) the same module and
DataModule under a plain Trainer, which checkpoints each epoch as it does by default. Both are
timed by one callback, from the first step to the last checkpoint, so imports are left out.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pytorch_lightning.callbacks import Callback

from sweeper.commands.overrides import with_own_classes
from sweeper.commands.plan import plan_grid
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import tasks

ROOT = Path(__file__).parent.parent
PROJECTS = {
    "photos": ("PhotoModule", "PhotoDataModule", 125),
    "regression": ("FriedmanModule", "FriedmanDataModule", 64),
    "text": ("TextModule", "TextDataModule", 50),
    "boxes": ("BoxModule", "BoxDataModule", 16),
}


class Stopwatch(Callback):
    """Leaves the seconds from the start of training to its end, and those of its processor."""

    def __init__(self, path):
        self.path = Path(path)

    def on_train_start(self, *_):
        self.started = self.now()

    def on_train_end(self, *_):
        spent = [end - start for start, end in zip(self.started, self.now(), strict=True)]
        self.path.write_text(json.dumps(spent))

    def now(self):
        return time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--project", choices=PROJECTS, default="photos")
    given = parser.parse_args()
    folders = [str(ROOT / "examples"), str(ROOT / "benchmarks")]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)  # of the workers
    sys.path[:0] = folders
    context = multiprocessing.get_context("forkserver")
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        _in_sweep(given.project, 1, Path(folder, "warm"))  # warms the fork server
        for repeat in range(given.repeats):
            ours.append(_in_sweep(given.project, given.epochs, Path(folder, str(repeat))))
            plain.append(_plain(context, given.project, given.epochs, Path(folder)))
    for index, clock in enumerate(("wall", "processor")):
        for name, runs in {"through a sweep": ours, "plain Trainer": plain}.items():
            seconds = [run[index] for run in runs]
            shown = ", ".join(f"{one:.2f}" for one in seconds)
            print(f"{clock:9} {name:16} {statistics.median(seconds):7.2f} s (of {shown})")
        ratios = [a[index] / b[index] for a, b in zip(ours, plain, strict=True)]
        print(f"{clock:9} ratio of neighbours in time: median {statistics.median(ratios):.3f}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _in_sweep(project: str, epochs: int, folder: Path) -> list[float]:
    module, data, batch = PROJECTS[project]
    seconds = folder / "seconds.json"
    words = [
        f"module._target_={project}.{module}",
        f"data._target_={project}.{data}",
        f"batch={batch}",
        "warmup=0",
        f"epochs={epochs}",
        "metric=train_loss",
        "metric_mode=min",
        f"results={folder}",
        f"+trainer.callbacks=[{{_target_: own_module.Stopwatch, path: {seconds}}}]",
    ]
    planned, ledger = plan_grid(with_own_classes(words), config_dir=None)
    ledger.prepare()
    for _ in run_here(tasks(planned, ledger, retry=None, rerun=None), ledger, Machine(cores=1)):
        pass
    return json.loads(seconds.read_text())


def _plain(context, project: str, epochs: int, folder: Path) -> list[float]:
    process = context.Process(target=fit, args=(project, epochs, str(folder)))
    process.start()
    process.join()
    return json.loads((folder / "seconds.json").read_text())


def fit(project: str, epochs: int, folder: str) -> None:
    import torch

    from lightning_modules.process.one_lightning import unite
    from lightning_modules.process.quiet import quieten

    unite()
    quieten()
    import pytorch_lightning as pl

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, data, batch = PROJECTS[project]
    package = importlib.import_module(project)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[Stopwatch(f"{folder}/seconds.json")],
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(getattr(package, module)(), getattr(package, data)(batch_size=batch))


if __name__ == "__main__":
    main()
