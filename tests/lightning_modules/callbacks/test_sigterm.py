"""SIGTERM goes to the launcher while Lightning trains."""

import os
import signal

import pytest
from ranks import ask_ranks, broadcasts

from lightning_modules.callbacks.checkpoint import LaunchersSigterm


@pytest.fixture
def received():
    """Signals that the handler of a launcher has been given."""
    given = []
    before = signal.signal(signal.SIGTERM, lambda number, _: given.append(number))
    yield given
    signal.signal(signal.SIGTERM, before)


def test_the_launcher_gets_the_signal_and_lightning_goes_on(received, fit, line, batches, noting):
    module = line()
    sending = noting("on_train_batch_start", lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    trainer = fit(module, [LaunchersSigterm(), sending], batches(4))

    assert received == [signal.SIGTERM] * 4
    assert not trainer.received_sigterm
    assert module.weight == pytest.approx(0.81)


@pytest.mark.slow
def test_ranks_do_not_tell_each_other_of_the_signal(tmp_path):
    """Lightning would have rank 0 do so before each micro-batch."""
    assert ask_ranks(broadcasts, tmp_path / "rendezvous", world_size=2) == [0, 0]
