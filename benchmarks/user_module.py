"""A user's module through a sweep against the same module under a plain Trainer.

    python benchmarks/user_module.py [--repeats 5] [--epochs 4] [--project photos]

Trains pairs at the same time on one core, in fresh processes with one thread each: (A) the project
of examples/ through the sweep's own launcher, with its own optimizer; (B) the same module and
DataModule under a plain Trainer, which checkpoints each epoch as it does by default. They take
turns every few milliseconds, so whatever else the machine does slows both alike; processor time is
compared. One callback measures it, from the first step, for which each waits for the other, to the
last checkpoint, so imports are left out.
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

from sweeper.commands.overrides import add_own_classes
from sweeper.commands.show_plan import plan_grid
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import claim_tasks

ROOT = Path(__file__).parent.parent
PROJECTS = {
    "photos": ("PhotoModule", "PhotoDataModule", 125),
    "regression": ("FriedmanModule", "FriedmanDataModule", 64),
    "text": ("TextModule", "TextDataModule", 50),
    "boxes": ("BoxModule", "BoxDataModule", 16),
}
_SECONDS = "seconds.json"


class Stopwatch(Callback):
    """Leaves the processor seconds from the start of training to its end.

    Args:
        path: of the file to leave.
        other: of the one that the run beside it leaves; None if there is none.
    """

    def __init__(self, path, other=None):
        self.path, self.other = Path(path), other

    def on_train_start(self, *_):
        self.path.with_suffix(".ready").touch()
        while self.other and not Path(self.other).with_suffix(".ready").exists():
            time.sleep(0.01)
        self.started = time.process_time()

    def on_train_end(self, *_):
        self.path.write_text(json.dumps(time.process_time() - self.started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--project", choices=PROJECTS, default="photos")
    given = parser.parse_args()
    folders = [str(ROOT / "examples"), str(ROOT / "benchmarks")]
    given_path = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *given_path])  # of the workers
    sys.path[:0] = folders
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of the workers too
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        _in_sweep(given.project, 1, Path(folder, "warm"), other=None)  # warms the fork server
        for repeat in range(given.repeats):
            pairs.append(_pair(given.project, given.epochs, Path(folder, str(repeat))))
            print("sweep {:6.2f} s, plain {:6.2f} s".format(*pairs[-1]))
    ratios = sorted(ours / plain for ours, plain in pairs)
    print(f"ratios {', '.join(f'{one:.3f}' for one in ratios)}")
    print(f"median {statistics.median(ratios):.3f}; load {os.getloadavg()[0]:.1f}")


def _pair(project: str, epochs: int, folder: Path) -> tuple[float, float]:
    """Processor seconds through a sweep and under a plain Trainer."""
    context = multiprocessing.get_context("forkserver")
    sweep, plain = folder / "sweep", folder / "plain"
    process = context.Process(target=fit, args=(project, epochs, plain, sweep))
    process.start()
    _in_sweep(project, epochs, sweep, other=plain)
    process.join()
    return tuple(json.loads((one / _SECONDS).read_text()) for one in (sweep, plain))


def _in_sweep(project: str, epochs: int, folder: Path, *, other: Path | None) -> None:
    module, data, batch = PROJECTS[project]
    waits_for = "null" if other is None else other / _SECONDS
    files = f"path: {folder / _SECONDS}, other: {waits_for}"
    words = [
        f"module._target_={project}.{module}",
        f"data._target_={project}.{data}",
        f"batch={batch}",
        "warmup=0",
        f"epochs={epochs}",
        "metric=train_loss",
        "metric_mode=min",
        f"results={folder}",
        f"+trainer.callbacks=[{{_target_: user_module.Stopwatch, {files}}}]",
    ]
    planned, ledger = plan_grid(add_own_classes(words), config_dir=None)
    ledger.prepare()
    for _ in run_here(
        claim_tasks(planned, ledger, retry=None, rerun=None), ledger, Machine(cores=1)
    ):
        pass


def fit(project: str, epochs: int, folder: Path, other: Path) -> None:
    folder.mkdir(parents=True)
    import torch

    from lightning_modules.process.output import quieten
    from sweeper.upstream.one_lightning import unite

    unite()
    quieten()
    import pytorch_lightning as pl

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, data, batch = PROJECTS[project]
    package = importlib.import_module(project)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[Stopwatch(folder / _SECONDS, other / _SECONDS)],
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
