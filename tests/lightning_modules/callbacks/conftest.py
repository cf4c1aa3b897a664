"""A module that knows nothing of ours, trained by Lightning with one callback at a time."""

from functools import partial

import pytest
from line import Line, constant_batches, train_line
from pytorch_lightning.callbacks import Callback

from lightning_modules.rank_plan import RankPlan
from sweeper.spec.run_spec import run_spec


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
