"""With reproducible=true a step's gradient is the sum of its micro-batches in one fixed tree."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.gradients.ordered_sum import OrderedSum
from lightning_modules.layers.batch_position import StepPosition
from sweeper.spec.batch import BatchSplit


@pytest.fixture
def ordered():
    """The callbacks of a reproducible run, and those it needs."""

    def make(plan):
        position = StepPosition()
        return [FollowPlan(plan, position), OrderedSum(plan, position)]

    return make


def test_a_step_is_the_mean_of_its_micro_batches(fit, line, plan, ordered, batches):
    """Gradients of w and 9 w: their mean of 5 w halves the weight at a rate of 0.1."""
    module = line()

    fit(module, ordered(plan()), [*batches(1), *batches(1, 3.0)])

    assert module.weight == pytest.approx(0.5, rel=1e-15)


def test_the_sum_is_that_of_a_tree_to_the_last_bit(fit, line, plan, ordered, noting):
    """1 and three times 2**-53: in pairs 2**-52 stays of them, one after the other nothing."""
    module, eight = line(), plan(batch=8, base_batch=8)
    gradients = noting(
        "on_before_optimizer_step", lambda _, line: line.layers[0].weight.grad.item()
    )
    tiny = torch.tensor([[2.0**-26], [0.0]]).double()  # half of its square is the gradient

    fit(module, [*ordered(eight), gradients], [(torch.ones(2, 1).double(),), *[(tiny,)] * 3])

    assert gradients.noted == [(1 + 2**-52) / 4]


def test_a_batch_that_has_grown_is_summed_over_all_of_it(
    fit, line, plan, growing, ordered, batches
):
    """2 steps of 2 micro-batches, then 1 of 4."""
    module = line()

    fit(module, ordered(plan(schedule=growing(1))), batches(4), epochs=2)

    assert module.weight == pytest.approx(0.9**3)


def test_a_batch_that_grows_within_an_epoch_is_summed_over_all_of_it(
    fit, line, plan, growing, ordered, batches
):
    """2 steps of 2 micro-batches, 2 of 4."""
    module = line()

    fit(module, ordered(plan(examples=24, schedule=growing(1 / 3), epochs=1)), batches(12))

    assert module.weight == pytest.approx(0.9**4)


def test_an_epoch_that_is_gone_on_with_is_summed_over_its_batch(process_group, line):
    """Lightning does not start such an epoch anew."""
    del process_group
    module, laid_out = line(), []
    split = BatchSplit(micro_batch=2, accumulation_steps=4, world_size=1)
    plan = SimpleNamespace(split=lambda *place: laid_out.append(place) or split, bn_span=2, rank=0)
    wrapped = SimpleNamespace(model=DistributedDataParallel(module))

    position = StepPosition()
    summing = OrderedSum(plan, position)
    trainer = SimpleNamespace(current_epoch=1, strategy=wrapped)
    summing.on_train_start(trainer, module)
    position.step = 3
    summing.on_train_batch_start(trainer, module, None, 12)

    assert laid_out == [(0,), (1, 3)]
