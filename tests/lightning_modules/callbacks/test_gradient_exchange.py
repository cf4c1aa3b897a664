"""Gradients go through the hook of the run, whose state is in the checkpoint."""

import pytest
from torch.futures import Future

from lightning_modules.gradients.ddp_hooks import GradientExchange, PowerSGD


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


def test_a_hook_goes_on_with_its_state(fit, line, batches, tmp_path):
    first, resumed = (PowerSGD(rank=1, start_step=2) for _ in range(2))

    fit(line(), [first], batches(4), save=tmp_path / "one.ckpt")
    fit(line(), [resumed], batches(4), epochs=2, resume=tmp_path / "one.ckpt")

    assert first.state_dict()["steps"] == 2
    assert resumed.state_dict()["steps"] == 4
