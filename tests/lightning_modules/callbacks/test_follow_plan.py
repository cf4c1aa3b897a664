"""Lightning and the layers follow the plan, and a model draws nowhere else."""

from types import SimpleNamespace

import pytest
from torch import nn

from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.layers.batch_position import StepPosition


def test_layers_know_where_a_rank_is_in_the_epoch(fit, line, plan, batches, noting):
    """Steps of 8; the second of two ranks has the last two of four micro-batches of 2."""
    position = StepPosition()
    of_rank = plan(examples=16, batch=8, base_batch=8, devices=2, rank=1)
    places = noting(
        "on_before_backward",
        lambda *_: (position.epoch, position.step, position.first_example, position.examples),
    )

    fit(line(), [FollowPlan(of_rank, position), places], batches(4), epochs=2)

    first_epoch = [(0, 0, 4, 2), (0, 0, 6, 2), (0, 1, 12, 2), (0, 1, 14, 2)]
    assert places.noted == first_epoch + [(1, *place) for _, *place in first_epoch]
    assert position.moves == 8


def test_a_layer_that_draws_from_torchs_generator_ends_the_run(fit, line, plan, batches):
    module = line(nn.Dropout(0.5))

    with pytest.raises(ValueError, match="its training pass drew from torch's generator"):
        fit(module, [FollowPlan(plan(), StepPosition())], batches(4))

    assert module.weight == 1


class DrawingLater(nn.Dropout):
    """Begins to draw with the fifth micro-batch."""

    seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x) if self.seen > 4 else x


def test_the_first_micro_batch_of_every_epoch_is_looked_at(fit, line, plan, batches, noting):
    epochs = noting("on_train_epoch_end", lambda *_: None)

    with pytest.raises(ValueError, match="its training pass drew from torch's generator"):
        fit(
            line(DrawingLater(0.5)),
            [FollowPlan(plan(), StepPosition()), epochs],
            batches(4),
            epochs=2,
        )

    assert len(epochs.noted) == 1


def test_a_model_that_does_not_draw_is_trained(fit, line, plan, batches):
    module = line(nn.Dropout(0.0))

    fit(module, [FollowPlan(plan(), StepPosition())], batches(4))

    assert module.weight == pytest.approx(0.81)


def test_an_epoch_that_is_gone_on_with_accumulates_as_its_batch_needs(plan, growing):
    """Lightning does not start such an epoch anew."""
    trainer = SimpleNamespace(current_epoch=1, accumulate_grad_batches=2)

    FollowPlan(plan(schedule=growing(1)), StepPosition()).on_train_start(trainer, None)

    assert trainer.accumulate_grad_batches == 4
