"""Small runs in this process, as in a rank's, stopped and resumed at will."""

import pytest
import torch
import torch.distributed as dist

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
