"""Small runs in this process, as in a rank's, stopped and resumed at will."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from line import Line, constant_batches, train_line
from pytorch_lightning.callbacks import Callback

from lightning_modules.rank_plan import RankPlan
from lightning_modules.train import RankContext, train
from lightning_modules.trial import measured_facts
from lightning_modules.trial.layout_arms import LayoutArm
from sweeper.spec.run_spec import run_spec


class Stopped(Exception):
    """The run was stopped after an epoch."""


@pytest.fixture
def process_group(tmp_path):
    store = dist.FileStore(str(tmp_path / "rendezvous"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.set_num_threads(1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def run_words(grid, tmp_path, process_group):
    """Train the run of some words, from its checkpoint if there is one, to its end or a part."""
    del process_group

    def go(*words, name="run", stop_after=None, one_step=False, num_train_examples=None):
        (config,) = grid(*words)
        if num_train_examples is not None:
            config["data"]["num_train_examples"] = num_train_examples

        def on_epoch(rows):
            if stop_after is not None and any(row["epoch"] == stop_after for row in rows):
                raise Stopped

        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        context = RankContext(
            rank=0,
            folder=folder,
            checkpoint=folder / "checkpoint.ckpt",
            on_epoch=on_epoch,
            stop_requested=lambda: one_step,
        )
        if stop_after is None:
            return train(run_spec(config), context)
        with pytest.raises(Stopped):
            train(run_spec(config), context)
        return None

    return go


@pytest.fixture
def find_facts(grid, monkeypatch):
    """Facts of a project, some of its config as a mapping, found in this process on one rank."""

    def run_here(*jobs):
        return [job() for job in jobs] if len(jobs) == 1 else [LayoutArm(error="one rank is here")]

    monkeypatch.setattr(measured_facts, "_in_forks", run_here)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)  # of another test, which Lightning obeys
    own = ["module=own", "module._target_=a.B", "data=own", "data._target_=a.C"]
    (config,) = grid(*own)
    return lambda described: measured_facts.facts({**config, **described})


@pytest.fixture
def line():
    return Line


@pytest.fixture
def plan(config):
    """The plan of a run of 2 epochs: steps of 4 examples as 2 micro-batches of 2."""

    def make(*, examples=8, rank=0, **words):
        data = {**config()["data"], "num_train_examples": examples}
        short = {"batch": 4, "micro_batch": 2, "bn_span": 2, "epochs": 2, "warmup": 0}
        short |= {"base_batch": 4, "schedule": {"name": "constant"}, "lr_rule": {"name": "none"}}
        return RankPlan(run_spec(config(data=data, **short | words)), rank=rank)

    return make


@pytest.fixture
def growing():
    """The schedule of a batch that doubles at some epochs, or as its noise says."""

    def make(*milestones, growth="milestones"):
        doubled = {"name": "growing_batch", "factor": 2, "max_batch": 8}
        return {**doubled, "growth": growth, "milestones": [*milestones]}

    return make


@pytest.fixture
def fit(tmp_path, process_group):
    """Train a module on micro-batches with some callbacks, from a checkpoint if one is given."""
    del process_group
    return partial(train_line, tmp_path)


@pytest.fixture
def batches():
    """Micro-batches of 2 ones each: ``batches(4)``."""
    return constant_batches


class _Noting(Callback):
    def __init__(self, hook, read):
        self.noted = []
        setattr(self, hook, lambda trainer, module, *_: self.noted.append(read(trainer, module)))


@pytest.fixture
def noting():
    """A callback that notes what is so at a hook: ``noting("on_train_start", read).noted``."""
    return _Noting
