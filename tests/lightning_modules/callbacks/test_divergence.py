"""A run that diverges ends with a sentence, before its weights are spoilt."""

import math
import signal
from unittest.mock import patch

import pytest
import torch
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.divergence import Diverged, Divergence, find_divergence
from lightning_modules.callbacks.epoch_means import TrainingMetrics
from lightning_modules.callbacks.measured_noise import GradientNoise
from lightning_modules.process.device import AsyncScalar


@pytest.fixture
def diverging(fit):
    def run(module, batches, *, ceiling=None, is_scaled=False):
        metrics = TrainingMetrics(("loss",))
        watch = Divergence(metrics, loss_ceiling=ceiling, is_scaled=is_scaled)
        fit(module, [metrics, watch], batches)

    return run


def test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_change(
    diverging, line, batches
):
    module = line()
    steps = [*batches(2), *batches(2, math.inf)]

    with pytest.raises(
        Diverged, match=r"^the gradient became non-finite at step 1 of epoch 1, lr=0\.1$"
    ):
        diverging(module, steps)

    assert module.weight == pytest.approx(0.9)


@pytest.fixture
def late(monkeypatch):
    """Numbers that are read as late as those of a GPU."""
    monkeypatch.setattr(
        AsyncScalar, "ready", property(lambda _: False, lambda *_: None), raising=False
    )


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("num", "passes"), [(4, 4), (8, 6)])
def test_without_waiting_for_the_norm_the_run_ends_within_the_next_step_or_with_the_epoch(
    diverging, line, batches, num, passes
):
    module = line()
    steps = [*batches(2), *batches(2, math.inf), *batches(num - 4)]

    with pytest.raises(
        Diverged, match=r"^the gradient became non-finite at step 1 of epoch 1, lr=0\.1$"
    ):
        diverging(module, steps)

    assert len(module.losses) == passes


@pytest.mark.usefixtures("late")
def test_what_raises_on_weights_that_are_not_finite_has_diverged(diverging, line, batches):
    module = line()
    own_step = module.training_step

    def training_step(batch, batch_idx):
        if not math.isfinite(module.weight):
            raise ValueError("the weight must be a number")
        return own_step(batch, batch_idx)

    module.training_step = training_step

    with pytest.raises(ValueError, match="must be a number") as raised:
        diverging(module, [*batches(2), *batches(2, math.inf), *batches(2)])
    assert "non-finite at step 1 of epoch 1" in str(find_divergence(raised.value))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("late")
def test_weights_that_are_not_finite_are_not_saved(fit, line, batches, noting, tmp_path):
    metrics, path = TrainingMetrics(("loss",)), tmp_path / "saved.ckpt"
    watch = Divergence(metrics, loss_ceiling=None)

    def save(trainer, _):
        if trainer.global_step == 2:
            trainer.save_checkpoint(path)

    with pytest.raises(Diverged, match="non-finite at step 1 of epoch 1"):
        fit(
            line(), [metrics, watch, noting("on_train_batch_end", save)],
            [*batches(2), *batches(2, math.inf), *batches(2)],
        )  # fmt: skip
    assert not path.exists()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(
    request, diverging, line, batches, is_late
):
    """Its gradient may be finite all the same."""
    if is_late:
        request.getfixturevalue("late")
    module = line()
    own_step = module.training_step

    def training_step(batch, batch_idx):
        return own_step(batch, batch_idx)["loss"] + (math.nan if batch_idx == 1 else 0.0)

    module.training_step = training_step

    with pytest.raises(Diverged, match=r"^the training loss became non-finite at step 1 of epoch"):
        diverging(module, batches(20))
    assert len(module.losses) == (4 if is_late else 2)


def test_where_gradients_cannot_be_judged_the_epochs_loss_is(diverging, line, batches, monkeypatch):
    """On several ranks, which do not look at the loss of a step."""
    monkeypatch.setattr(Divergence, "on_train_batch_end", Callback.on_train_batch_end)

    with pytest.raises(Diverged, match=r"^the training loss became non-finite by step 1 of epoch"):
        diverging(line(), batches(2, math.inf), is_scaled=True)


def test_a_loss_above_the_ceiling_ends_the_run(diverging, line, batches):
    with pytest.raises(
        Diverged, match=r"^the training loss 0\.5 exceeded loss_ceiling=0\.4 at step 1 of epoch 1"
    ):
        diverging(line(), batches(2), ceiling=0.4)


def test_a_loss_below_the_ceiling_does_not(diverging, line, batches):
    diverging(line(), batches(2), ceiling=0.6)


def test_a_norm_that_was_measured_with_the_noise_is_not_computed_again(fit, line, plan, batches):
    metrics, noise = TrainingMetrics(("loss",)), GradientNoise(plan(), span=2)
    watch = Divergence(metrics, loss_ceiling=None, noise=noise)
    norms = []

    def norm_of(gradients):
        norms.append(gradients)
        return torch.ones(())

    with patch("torch.nn.utils.get_total_norm", norm_of):
        fit(line(), [metrics, noise, watch], batches(4))

    assert len(norms) == 2
