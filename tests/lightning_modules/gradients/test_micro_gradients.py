"""The optimizer sees each micro-batch's own gradient, whatever accumulation does with it."""

from types import SimpleNamespace

import pytest
import torch

from lightning_modules.gradients.micro_gradients import MicroGradients

INPUTS = torch.tensor([[1.0, 2.0], [3.0, -4.0], [0.0, 1.0], [-2.0, 2.0]], dtype=torch.float64)


def squared_norm(gradient):
    return gradient.square().sum()


def accumulate(weight, *, loss_scale=1.0, inputs=INPUTS):
    """Backward passes over micro-batches of one example, as Lightning divides them."""
    for row in inputs:
        ((row * weight).sum() * loss_scale / len(inputs)).backward()


def trainer(accumulation_steps, loss_scale):
    scaler = SimpleNamespace(get_scale=lambda: loss_scale)
    plugin = SimpleNamespace(scaler=scaler)
    return SimpleNamespace(accumulate_grad_batches=accumulation_steps, precision_plugin=plugin)


def watched(statistic, *, loss_scale=1.0):
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    micro = MicroGradients(statistic)
    micro.watch(torch.nn.ParameterList([weight]), trainer(len(INPUTS), loss_scale))
    return weight, micro


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_squares_and_norms_are_those_of_the_separate_gradients(loss_scale):
    """The gradient of micro-batch i of a linear loss is its input; 16-mixed multiplies losses."""
    for statistic, expected in (
        (torch.square, INPUTS.square().mean(dim=0)),
        (squared_norm, INPUTS.square().sum(dim=1).mean()),
    ):
        weight, micro = watched(statistic, loss_scale=loss_scale)
        accumulate(weight, loss_scale=loss_scale)

        torch.testing.assert_close(micro.means([weight])[0], expected)


def test_each_step_begins_anew():
    weight, micro = watched(torch.square)
    accumulate(weight)
    micro.means([weight])

    accumulate(weight, inputs=2 * INPUTS)

    torch.testing.assert_close(micro.means([weight])[0], 4 * INPUTS.square().mean(dim=0))


def test_a_step_that_the_loss_scaler_skipped_leaves_nothing_behind():
    """After an overflow the optimizer is not called; the next step counts its own gradients."""
    weight, micro = watched(squared_norm)
    accumulate(weight, inputs=torch.full_like(INPUTS, torch.inf))

    accumulate(weight)
    torch.testing.assert_close(micro.means([weight])[0], INPUTS.square().sum(dim=1).mean())


def test_a_weight_that_a_micro_batch_leaves_out_has_no_gradient_of_it():
    used, seldom = (torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    micro = MicroGradients(torch.square)
    micro.watch(torch.nn.ParameterList([seldom, used]), trainer(4, 1.0))
    accumulate(used)
    accumulate(seldom, inputs=INPUTS[:1])

    of_seldom, of_used = micro.means([seldom, used])

    torch.testing.assert_close(of_used, INPUTS.square().mean(dim=0))
    torch.testing.assert_close(of_seldom, 4 * INPUTS[0].square())
    accumulate(used)
    torch.testing.assert_close(micro.means([seldom, used])[0], torch.zeros_like(seldom))


def test_gradients_that_are_not_accumulated_are_not_seen():
    """SAM's ascent asks for gradients of its own in between."""
    weight, micro = watched(squared_norm)
    for row in INPUTS:
        torch.autograd.grad((9 * row * weight).sum(), weight)
        ((row * weight).sum() / len(INPUTS)).backward()

    torch.testing.assert_close(micro.means([weight])[0], INPUTS.square().sum(dim=1).mean())
