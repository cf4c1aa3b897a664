"""An epoch that was left in its middle goes on with the examples it has not had."""

import pytest
from line import Numbers

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.callbacks.checkpoint import RunCheckpoint, Stopped, StopRequest
from lightning_modules.callbacks.curve import Clock
from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.callbacks.mid_epoch_resume import MidEpochResume
from lightning_modules.data.batches import MicroBatches
from lightning_modules.layers.batch_position import StepPosition


@pytest.fixture
def numbers_trained(plan, fit, line, tmp_path):
    """What an epoch of 16 numbers trains on, in 4 steps, until a stop; and the weight it makes."""

    def run(*, stop_after=None, micro_batch=2, resume=None):
        of_run = plan(examples=16, epochs=1, micro_batch=micro_batch)
        contract, module, data = BatchContract(of_run), line(), Numbers(16)
        checkpoint = RunCheckpoint(
            tmp_path / "checkpoint.ckpt",
            attempt="attempt",
            plan=of_run,
            contract=contract,
            stop=StopRequest(lambda: contract.steps == stop_after, rank=0),
            clock=Clock(),
            can_stop=lambda: contract.steps == stop_after,
            on_epoch=lambda: None,
        )
        fit(
            module,
            [
                contract,
                FollowPlan(of_run, StepPosition()),
                MidEpochResume(of_run, contract),
                checkpoint,
            ],
            MicroBatches(data, of_run, seed=0),
            resume=resume,
        )
        return data.trained, module.weight

    return run


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 4), (4, 2)])
def test_the_rest_of_an_epoch_has_the_rest_of_the_examples(
    numbers_trained, tmp_path, before, after
):
    """After 3 of 4 steps, also in micro-batches of another size."""
    whole, weight = numbers_trained()
    with pytest.raises(Stopped, match="after 3 of 4 steps"):
        numbers_trained(stop_after=3, micro_batch=before)

    rest, resumed = numbers_trained(micro_batch=after, resume=tmp_path / "checkpoint.ckpt")

    assert sorted(whole) == list(range(16))
    assert rest == whole[12:]
    assert resumed == pytest.approx(weight, rel=1e-12)
