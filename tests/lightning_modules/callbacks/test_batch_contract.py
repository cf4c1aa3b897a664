"""Every optimizer step has the examples of the global batch, or the run fails."""

import pytest

from lightning_modules.callbacks.batch_contract import BatchContract, BatchContractBroken


def test_the_batch_of_every_step_is_counted(fit, line, plan, batches):
    contract = BatchContract(plan())

    fit(line(), [contract], batches(4))

    assert (contract.realised_batch_min, contract.realised_batch_max) == (4, 4)
    assert contract.steps == 0  # the next epoch's


def test_an_example_too_few_fails_the_run(fit, line, plan, batches):
    short = batches(4)
    short[2] = (short[2][0][:1],)

    with pytest.raises(
        BatchContractBroken,
        match=r"^every epoch must have 2 optimizer steps of 4 examples; epoch 1 had 2 steps of 3 to"
        r" 4 examples\. The data or the ranks differ from the plan, a hook ended the epoch, or no",
    ):
        fit(line(), [BatchContract(plan())], short)


def test_a_step_too_few_fails_the_run(fit, line, plan, batches):
    with pytest.raises(BatchContractBroken, match="epoch 1 had 1 step of 4 to 4 examples"):
        fit(line(), [BatchContract(plan())], batches(2))


def test_an_epoch_that_a_hook_ends_fails_the_run(fit, line, plan, batches):
    class Ending(line):
        def on_train_batch_start(self, *_):
            return -1

    with pytest.raises(BatchContractBroken, match="epoch 1 had 0 steps of 0 to 0 examples"):
        fit(Ending(), [BatchContract(plan())], batches(4))


def test_a_micro_batch_without_a_loss_fails_the_run(fit, line, plan, batches):
    """Lightning steps with the gradients of the others."""

    class Skipping(line):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 2 else super().training_step(batch, batch_idx)

    with pytest.raises(BatchContractBroken, match="returned none for micro-batch 3 of epoch 1"):
        fit(Skipping(), [BatchContract(plan())], batches(4))


@pytest.mark.parametrize("ranks", [[[2, 2]], [[1, 1], [1, 1]]], ids=["same", "2 ranks to 1"])
def test_an_epoch_goes_on_with_the_counts_of_all_ranks(fit, line, plan, batches, ranks):
    """One step of 2 + 2 examples and one of 2 + 2 were counted; an epoch of 4 steps has 2 left."""
    contract = BatchContract(plan(examples=16))
    del fit, line, batches

    contract.load_state_dict({"range": [4, 4], "ranks": ranks})

    assert contract.steps == 2
    assert contract._examples_of_steps == [2, 2]
