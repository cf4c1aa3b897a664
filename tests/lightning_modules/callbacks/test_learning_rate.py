"""Each step has the rate of its own number, read back from the optimizer."""

from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.curve import Clock, Curve
from lightning_modules.callbacks.learning_rate import LearningRate


class Rates(Callback):
    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        del trainer, pl_module
        self.seen.append(optimizer.param_groups[0]["lr"])


def test_each_step_has_its_scheduled_rate(fit, line, plan, batches):
    warming = plan(base_lr=0.8, warmup=1, warmup_start="zero")
    rates = Rates()

    fit(line(), [LearningRate(warming), rates], batches(4), epochs=2)

    assert rates.seen == [warming.lr(step) for step in range(4)]
    assert len(set(rates.seen)) > 1


def test_the_hash_of_the_rates_tells_them_apart(fit, line, plan, batches):
    hashes = []
    for base_lr in (0.1, 0.1, 0.2):
        curve = Curve(plan(), Clock(), [])
        fit(line(), [LearningRate(plan(base_lr=base_lr)), curve], batches(4))
        hashes.append(curve.lr_series_hash)

    assert hashes[0] == hashes[1] != hashes[2]
