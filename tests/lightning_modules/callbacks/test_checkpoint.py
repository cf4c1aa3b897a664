"""The checkpoint is replaced as a whole, and a stop that is requested waits for the step's end."""

from pathlib import Path

import pytest
import torch
from ranks import ask_ranks, stops

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.callbacks.checkpoint import RunCheckpoint, Stopped, StopRequest
from lightning_modules.callbacks.curve import Clock


@pytest.fixture
def saving(plan, tmp_path):
    """The callback with a contract that counts its steps, and the path of its checkpoint."""

    def make(*, is_requested=False, can_stop=True, on_epoch=lambda: None, attempt="attempt"):
        path, contract = tmp_path / "checkpoint.ckpt", BatchContract(plan())
        checkpoint = RunCheckpoint(
            path,
            attempt=attempt,
            plan=plan(),
            contract=contract,
            stop=StopRequest(lambda: is_requested, rank=0),
            clock=Clock(),
            can_stop=lambda: can_stop,
            on_epoch=on_epoch,
        )
        return [contract, checkpoint], path

    return make


def steps_in(path: Path) -> int:
    return torch.load(path, weights_only=False)["global_step"]


def test_a_run_is_saved_after_each_epoch_and_then_reported(saving, fit, line, batches):
    """When training starts there is nothing to be saved."""
    saved = []
    callbacks, path = saving(on_epoch=lambda: saved.append(steps_in(path) if path.exists() else 0))

    fit(line(), callbacks, batches(4), epochs=2)

    assert saved == [0, 2, 4]
    assert not list(path.parent.glob("*.tmp"))


def test_an_attempt_whose_launcher_slept_leaves_the_checkpoint_to_a_later_one(
    saving, fit, line, batches
):
    callbacks, path = saving(attempt="001")
    (path.parent / "001").mkdir()
    fit(line(), callbacks, batches(4), epochs=1)
    (path.parent / "002").mkdir()
    path.write_text("the later attempt's")

    with pytest.raises(RuntimeError, match="a later one than this has begun"):
        fit(line(), callbacks, batches(4), epochs=1)

    assert path.read_text() == "the later attempt's"


class Dying:
    """A Trainer whose process dies in the middle of a write."""

    should_stop = False
    current_epoch = 0
    max_epochs = 1
    is_global_zero = True

    def save_checkpoint(self, path):
        path.write_text("hal")
        raise KeyboardInterrupt


class Waiting:
    """A Trainer of another rank, which writes nothing."""

    is_global_zero = False
    should_stop = True
    current_epoch = 0
    max_epochs = 1

    def save_checkpoint(self, path):
        del path


def test_a_save_that_dies_leaves_the_checkpoint_as_it_was(saving):
    (_, checkpoint), path = saving()
    path.write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        checkpoint.on_train_epoch_end(Dying(), None)

    assert path.read_text() == "whole"


class Full(Dying):
    """A Trainer on a full disk, which the operating system says without a name."""

    def save_checkpoint(self, path):
        del path
        raise OSError(28, "No space left on device")


def test_a_checkpoint_that_cannot_be_written_is_named(saving):
    (_, checkpoint), path = saving()

    with pytest.raises(OSError, match=f"No space left on device: '{path}'$"):
        checkpoint.on_train_epoch_end(Full(), None)


def test_where_the_folder_was_moved_none_is_made_in_its_place(saving, fit, line, batches):
    """Lightning makes the folders of a file that it saves."""
    callbacks, path = saving(on_epoch=lambda: path.parent.rename(path.parent.with_name("moved")))

    with pytest.raises(FileNotFoundError, match=str(path.parent)):
        fit(line(), callbacks, batches(4), epochs=1)

    assert not path.parent.exists()


def test_other_ranks_leave_the_checkpoint_to_the_first(saving):
    (_, checkpoint), path = saving()

    checkpoint.on_train_epoch_end(Waiting(), None)

    assert not path.exists()


def test_a_stop_comes_at_the_end_of_the_step_and_is_saved(saving, fit, line, batches):
    """The step has two micro-batches; the weight is what one step made of it."""
    module, (callbacks, path) = line(), saving(is_requested=True)

    with pytest.raises(Stopped, match=r"^after 1 of 2 steps of epoch 1$"):
        fit(module, callbacks, batches(4), epochs=2)

    assert len(module.losses) == 2
    assert steps_in(path) == 1
    assert module.weight == pytest.approx(0.9)


def test_a_stop_waits_for_the_epochs_end_while_ranks_differ(saving, fit, line, batches):
    callbacks, path = saving(is_requested=True, can_stop=False)

    with pytest.raises(Stopped, match=r"^after epoch 1$"):
        fit(line(), callbacks, batches(4), epochs=2)

    assert steps_in(path) == 2


def test_a_run_that_is_at_its_end_is_not_stopped(saving, fit, line, batches):
    callbacks, path = saving(is_requested=True, can_stop=False)

    fit(line(), callbacks, batches(4), epochs=1)

    assert steps_in(path) == 2


def test_a_run_that_ends_early_is_at_its_end_as_well(saving, fit, line, batches, noting):
    """Another callback ends it in the first of 3 epochs, at whose end a stop is requested."""
    callbacks, path = saving(is_requested=True, can_stop=False)
    ending = noting("on_train_epoch_end", lambda trainer, _: setattr(trainer, "should_stop", True))

    fit(line(), [ending, *callbacks], batches(4), epochs=3)

    assert steps_in(path) == 2


@pytest.mark.slow
def test_all_ranks_stop_after_the_same_step_and_only_the_first_is_asked(tmp_path):
    """Rank 0 is asked to stop at every third poll; rank 1 always, but nobody polls it."""
    (polled, steps), other = ask_ranks(stops, tmp_path / "rendezvous", world_size=2)

    assert polled == [False, False, True]
    assert other == (polled, steps)


def test_the_checkpoint_of_another_run_is_refused(saving):
    """Copied there by hand, its weights would be trained on, and the row would not say so."""
    (_, checkpoint), path = saving()
    state = checkpoint.state_dict()

    checkpoint.load_state_dict(state)
    with pytest.raises(ValueError, match=f"must belong to run {path.parent.name}; it belongs"):
        checkpoint.load_state_dict(state | {"run_id": "other"})
