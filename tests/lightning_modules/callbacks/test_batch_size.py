"""Each epoch accumulates as its batch needs; the batch grows where its noise is above it."""

from types import SimpleNamespace

import pytest

from lightning_modules.callbacks.batch_growth import BatchSize, MeasuredGrowth


def test_a_batch_that_doubles_takes_half_the_steps(fit, line, plan, growing, batches):
    """2 steps of 2 micro-batches, then 1 of 4; each shrinks the weight by a tenth."""
    module = line()

    trainer = fit(module, [BatchSize(plan(schedule=growing(1)))], batches(4), epochs=2)

    assert trainer.global_step == 3
    assert module.weight == pytest.approx(0.9**3)


def test_an_epoch_that_is_gone_on_with_accumulates_as_its_batch_needs(plan, growing):
    """Lightning does not start such an epoch anew."""
    trainer = SimpleNamespace(current_epoch=1, accumulate_grad_batches=2)

    BatchSize(plan(schedule=growing(1))).on_train_start(trainer, None)

    assert trainer.accumulate_grad_batches == 4


@pytest.fixture
def grown(fit, line, plan, growing, batches):
    """The epochs at which the batch of 4 grew in 3 epochs of a constant noise scale."""

    def run(noise_scale, *, growths_allowed=9, warmup_epochs=0.0):
        measured = plan(examples=16, schedule=growing(growth="measured"), noise_span=2)
        noise = SimpleNamespace(columns={"noise_scale": noise_scale})
        growth = MeasuredGrowth(
            measured, noise, growths_allowed=growths_allowed, warmup_epochs=warmup_epochs
        )
        fit(line(), [growth], batches(2), epochs=3)
        assert growth.state_dict() == {"grown": list(measured.grown)}
        return measured.grown

    return run


@pytest.mark.parametrize(
    ("noise_scale", "epochs"),
    [(None, ()), (4.0, ()), (4.5, (1,)), (8.0, (1,)), (8.5, (1, 2))],
)
def test_the_batch_grows_after_epochs_whose_noise_scale_was_above_it(grown, noise_scale, epochs):
    """From 4 to 8 to 16; what the last epoch decides is for the one after it."""
    assert grown(noise_scale)[:2] == epochs


def test_the_batch_grows_no_more_often_than_it_may(grown):
    assert grown(1e9, growths_allowed=1) == (1,)


def test_the_batch_stays_during_the_warmup(grown):
    assert grown(4.5, warmup_epochs=1.5) == (2,)


def test_a_batch_that_has_grown_is_as_large_after_a_resume(
    fit, line, plan, growing, batches, tmp_path
):
    quiet = SimpleNamespace(columns={"noise_scale": 0.0})
    plans = [plan(schedule=growing(growth="measured"), noise_span=2) for _ in range(2)]
    before, after = (
        MeasuredGrowth(one, quiet, growths_allowed=1, warmup_epochs=0.0) for one in plans
    )
    plans[0].grow((1,))

    fit(line(), [before], batches(2), save=tmp_path / "one.ckpt")
    fit(line(), [after], batches(2), resume=tmp_path / "one.ckpt")

    assert plans[1].split(1).global_batch == 8
