"""Means over an epoch weigh each example once, in training and in validation."""

import pytest
import torch
from line import Numbers

from lightning_modules.callbacks.epoch_means import EpochSums, Evaluation, TrainingMetrics
from lightning_modules.data.batches import ValBatches, val_bounds
from lightning_modules.methods.weight_average import WeightAverage


@pytest.fixture
def evaluated(fit, line, plan, batches):
    """Evaluate the first numbers with the weight that one step of training has made 0.9."""

    def run(num_examples, *, rank=0, devices=1, in_whole=False, average=None):
        data, module, was_training = Numbers(0), line(), []
        module.layers.register_forward_hook(lambda layer, *_: was_training.append(layer.training))
        of_run = plan(examples=4, rank=rank, devices=devices)
        evaluation, split = (
            Evaluation(of_run.is_evaluated_at, ("loss",), average=average),
            of_run.split(0),
        )
        bounds = val_bounds(num_examples, split=split, rank=rank, in_whole_micro_batches=in_whole)
        before = [average] if average else []
        fit(module, [*before, evaluation], batches(2), val=ValBatches(data, bounds))
        assert module.training
        assert was_training == [True, True] + [False] * (len(was_training) - 2)
        assert module.weight == pytest.approx(0.9)
        return evaluation.columns, data.evaluated

    return run


def test_the_means_are_over_all_examples(evaluated):
    """Of 0 to 4 the squares' mean is 6; the last micro-batch of 2 has a single one."""
    columns, examples = evaluated(5)

    assert columns == pytest.approx({"val_loss": 0.9**2 * 6 / 2})
    assert examples == [0, 1, 2, 3, 4]


def test_an_average_of_the_weights_is_evaluated_in_place_of_them(evaluated):
    """Half of 1 and half of 0.9."""
    columns, _ = evaluated(5, average=WeightAverage(decay=0.5))

    assert columns == pytest.approx({"val_loss": 0.95**2 * 6 / 2})


def test_a_rank_without_examples_passes_over_one_and_counts_none(fit, line, plan, batches):
    """Lightning skips an empty loop, and the other ranks would wait for this one's sums."""
    data, evaluation = (
        Numbers(0),
        Evaluation(plan(examples=4).is_evaluated_at, ("loss",), average=None),
    )

    fit(line(), [evaluation], batches(2), val=ValBatches(data, []))

    assert data.evaluated == [0]
    assert evaluation.columns == {}


def test_sums_over_an_epoch_weigh_each_example_once():
    sums = EpochSums(("loss", "accuracy"), torch.device("cpu"))
    sums.add({"loss": torch.tensor(4.0), "accuracy": torch.tensor(3)}, 4)
    sums.add({"loss": torch.tensor(5.0), "accuracy": torch.tensor(0)}, 1)

    assert sums.means() == pytest.approx({"loss": 1.8, "accuracy": 0.6})


def test_a_modules_sums_become_columns_of_the_epoch(fit, line, batches):
    metrics = TrainingMetrics(("loss",))

    fit(line(), [metrics], [*batches(2), *batches(1, 3.0)], accumulate=3)

    assert metrics.columns == pytest.approx({"train_loss": (1 + 1 + 9) / 3 / 2})


def test_an_epoch_goes_on_with_the_sums_of_all_ranks(fit, line, batches):
    """Two ranks left 10 over 3 examples and 2 over 1; the loss of 2 more is 1 / 2 each."""

    class Resumed(TrainingMetrics):
        def setup(self, *_, **__):
            self.load_state_dict({"ranks": [torch.tensor([10.0, 3.0]), torch.tensor([2.0, 1.0])]})

    resumed = Resumed(("loss",))

    fit(line(), [resumed], batches(1), accumulate=1)

    assert resumed.columns == pytest.approx({"train_loss": (12 + 2 * 0.5) / 6})


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_resumed_epoch_weighs_its_steps_alike_whatever_their_micro_batches(
    fit, line, batches, before, after
):
    """A loss of 4.5 before the resume, and one of 0.5 after it."""

    kept = {}

    class Kept(TrainingMetrics):
        def on_train_batch_end(self, *args):
            super().on_train_batch_end(*args)
            kept.update(self.state_dict())

    class Resumed(TrainingMetrics):
        def setup(self, *_, **__):
            self.load_state_dict(kept)

    for kind, value, accumulate in ((Kept, 3.0, before), (Resumed, 1.0, after)):
        module = line()
        with_sums = module.training_step
        module.training_step = lambda batch, at, own=with_sums: own(batch, at)["loss"]
        metrics = kind(("loss",))
        fit(module, [metrics], batches(accumulate, value), accumulate=accumulate)

    assert metrics.columns == pytest.approx({"train_loss": (4.5 + 0.5) / 2})


def test_the_loss_of_a_module_without_sums_is_the_one_it_returned(fit, line, batches):
    """Lightning hands on a loss that it has divided for accumulation."""
    module, metrics = line(), TrainingMetrics(("loss",))
    with_sums = module.training_step
    module.training_step = lambda batch, batch_idx: with_sums(batch, batch_idx)["loss"]

    fit(module, [metrics], [*batches(2), *batches(1, 3.0)], accumulate=3)

    assert metrics.columns == pytest.approx({"train_loss": (1 + 1 + 9) / 3 / 2})
