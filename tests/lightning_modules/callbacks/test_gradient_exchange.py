"""Gradients go through the hook of the run, whose state is in the checkpoint."""

import pytest
from torch.futures import Future

from lightning_modules.gradients.ddp_hooks import GradientExchange


def test_gradients_go_through_the_hook_once_a_step(fit, line, batches):
    """Five times a gradient of w at a rate of 0.1 halves the weight at each of two steps."""
    module, exchanged = line(), []

    def fivefold(state, bucket):
        state.append(bucket)
        future = Future()
        future.set_result(bucket.buffer() * 5)
        return future

    fit(module, [GradientExchange(fivefold, exchanged)], batches(4))

    assert module.weight == pytest.approx(0.25)
    assert len(exchanged) == 2
