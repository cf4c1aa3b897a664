"""Gradients go through the hook of the run, whose state is in the checkpoint."""

import pytest
from torch.futures import Future

from lightning_modules.callbacks.gradient_exchange import GradientExchange


class Fivefold:
    """Five times the gradient; counts its exchanges."""

    def __init__(self):
        self.exchanges = 0

    def register(self, model):
        model.register_comm_hook(None, self._exchange)

    def _exchange(self, _, bucket):
        self.exchanges += 1
        future = Future()
        future.set_result(bucket.buffer() * 5)
        return future

    def state(self):
        return {"exchanges": self.exchanges}

    def load_state(self, state):
        self.exchanges = state["exchanges"]


def test_gradients_go_through_the_hook_once_a_step(fit, line, batches):
    """Five times a gradient of w at a rate of 0.1 halves the weight at each of two steps."""
    module, hook = line(), Fivefold()

    fit(module, [GradientExchange(hook)], batches(4))

    assert module.weight == pytest.approx(0.25)
    assert hook.exchanges == 2


def test_the_hook_goes_on_with_its_state(fit, line, batches, tmp_path):
    hook = Fivefold()

    fit(line(), [GradientExchange(Fivefold())], batches(4), save=tmp_path / "one.ckpt")
    fit(line(), [GradientExchange(hook)], batches(4), epochs=2, resume=tmp_path / "one.ckpt")

    assert hook.exchanges == 4
