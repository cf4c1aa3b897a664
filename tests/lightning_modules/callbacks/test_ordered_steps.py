"""With reproducible=true a step's gradient is the sum of its micro-batches in one fixed tree."""

import pytest
import torch

from lightning_modules.callbacks.batch_growth import BatchSize
from lightning_modules.callbacks.gradient_exchange import GradientExchange
from lightning_modules.callbacks.ordered_sum import OrderedSum
from lightning_modules.callbacks.random_draws import Position
from lightning_modules.gradients.ordered_sum import OrderedGradients
from lightning_modules.layers.position import StepPosition


@pytest.fixture
def ordered():
    """The callbacks of a reproducible run, and those it needs."""

    def make(module, plan):
        position = StepPosition()
        gradients = OrderedGradients(
            module, position=position, bn_span=2, rank=0, split=plan.split(0)
        )
        around = [BatchSize(plan), Position(plan, position), GradientExchange(gradients)]
        return [*around, OrderedSum(plan, gradients)]

    return make


def test_a_step_is_the_mean_of_its_micro_batches(fit, line, plan, ordered, batches):
    """Gradients of w and 9 w: their mean of 5 w halves the weight at a rate of 0.1."""
    module = line()

    fit(module, ordered(module, plan()), [*batches(1), *batches(1, 3.0)])

    assert module.weight == pytest.approx(0.5, rel=1e-15)


def test_the_sum_is_that_of_a_tree_to_the_last_bit(fit, line, plan, ordered, noting):
    """1 and three times 2**-53: in pairs 2**-52 stays of them, one after the other nothing."""
    module, eight = line(), plan(batch=8, base_batch=8)
    gradients = noting(
        "on_before_optimizer_step", lambda _, line: line.layers[0].weight.grad.item()
    )
    tiny = torch.tensor([[2.0**-26], [0.0]]).double()  # half of its square is the gradient

    fit(
        module, [*ordered(module, eight), gradients], [(torch.ones(2, 1).double(),), *[(tiny,)] * 3]
    )

    assert gradients.noted == [(1 + 2**-52) / 4]


def test_a_batch_that_has_grown_is_summed_over_all_of_it(
    fit, line, plan, growing, ordered, batches
):
    """2 steps of 2 micro-batches, then 1 of 4."""
    module = line()

    fit(module, ordered(module, plan(schedule=growing(1))), batches(4), epochs=2)

    assert module.weight == pytest.approx(0.9**3)


def test_an_epoch_that_is_gone_on_with_is_summed_over_its_batch(plan, growing):
    """Lightning does not start such an epoch anew."""
    laid_out = []

    class Sums:
        lay_out = laid_out.append

    class InSecondEpoch:
        current_epoch = 1

    OrderedSum(plan(schedule=growing(1)), Sums).on_train_start(InSecondEpoch, None)

    assert [split.global_batch for split in laid_out] == [8]
