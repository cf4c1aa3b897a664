"""A module's own schedulers count the steps of a batch that grows within an epoch."""

from types import SimpleNamespace

import pytest

from lightning_modules.callbacks.user_schedulers import OwnSchedulers


@pytest.fixture
def ramp(plan, growing):
    """2 steps of 2 micro-batches, then 2 of 4; the second batch is in training."""

    def begin(frequency):
        schedulers = OwnSchedulers(plan(examples=24, schedule=growing(1 / 3), epochs=1))
        config = SimpleNamespace(reduce_on_plateau=False, interval="step", frequency=frequency)
        config.scheduler = object()
        trainer = SimpleNamespace(current_epoch=0, accumulate_grad_batches=4)
        trainer.lr_scheduler_configs = [config]
        module = SimpleNamespace(automatic_optimization=True)
        schedulers.on_train_start(trainer, module)
        schedulers.on_train_batch_start(trainer, module, None, 4)
        return config.frequency

    return begin


def test_a_scheduler_of_each_step_is_stepped_after_the_micro_batches_of_the_larger_batch(ramp):
    assert ramp(1) == 4


def test_a_scheduler_of_every_other_step_is_refused(ramp):
    with pytest.raises(ValueError, match=r"frequency must be 1 .* got frequency=2 of object\."):
        ramp(2)
