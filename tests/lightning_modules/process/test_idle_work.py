"""What is spared has no effect: what is logged, and whether there is a GPU, stay as they are."""

import os

import pytest
import torch
from pytorch_lightning.loops import training_epoch_loop
from pytorch_lightning.trainer.connectors.logger_connector import result
from torchmetrics import MeanMetric

from lightning_modules.process.idle_work import spare_idle_work


@pytest.fixture
def kept(monkeypatch):
    """What Lightning keeps of the values that it is given, after it is spared moving them."""
    monkeypatch.setattr(result._ResultMetric, "to", result._ResultMetric.to)
    spare_idle_work()
    collection = result._ResultCollection(training=True)

    def log(*values):
        for value in values:
            collection.log("training_step", "loss", value, on_epoch=True, batch_size=2)
        return collection["training_step.loss"]

    return log


def test_what_is_logged_again_is_where_it_was(kept, monkeypatch):
    kept(torch.tensor(1.0))
    monkeypatch.setattr(result, "apply_to_collection", lambda *_: pytest.fail("it was moved"))

    assert kept(torch.tensor(4.0)).compute() == pytest.approx(2.5)


def test_a_value_of_another_device_moves_what_was_kept_of_those_before(kept):
    assert kept(torch.tensor(1.0)).value.device.type == "cpu"

    assert kept(torch.tensor(4.0, device="meta")).value.device.type == "meta"


def test_a_metric_stays_with_its_own_states(kept):
    metric = MeanMetric()
    for value in (1.0, 4.0):
        metric(torch.tensor(value))
        logged = kept(metric)

    assert logged.value is metric
    assert logged.compute() == pytest.approx(2.5)


def test_where_there_is_no_gpu_torch_does_not_look_for_its_library(monkeypatch):
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for there_is_one in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=there_is_one: found)
        spare_idle_work()

        assert ("PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ) is there_is_one


def test_sparing_it_twice_is_sparing_it_once(kept):
    del kept
    once = result._ResultMetric.to
    spare_idle_work()

    assert result._ResultMetric.to is once


def test_a_module_is_asked_once_whether_it_takes_the_index_of_a_batch(monkeypatch):
    asked = []

    def takes(hook, name, *, min_args):
        asked.append(name)
        return len(hook.__code__.co_varnames) > min_args

    monkeypatch.setattr(training_epoch_loop, "is_param_in_hook_signature", takes)
    spare_idle_work()

    class Steps:
        def with_index(self, batch, batch_idx): ...
        def without(self, batch): ...

    for name, takes_it in (("with_index", True), ("without", False), ("with_index", True)):
        step = getattr(Steps(), name)
        for _ in range(2):
            found = training_epoch_loop.is_param_in_hook_signature(step, "batch_idx", min_args=2)
            assert found is takes_it
    assert len(asked) == 3
