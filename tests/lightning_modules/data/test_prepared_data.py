"""No run of a sweep writes the data of a DataModule while another is reading them."""

import fcntl
import os
from types import SimpleNamespace

import pytest
from users import DataModule

from lightning_modules.data.loaders import use_run_loaders


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "attempts"
    folder.mkdir()
    return folder


@pytest.fixture
def is_free(runs):
    """Whether another run could have the lock now."""

    def try_it(kind):
        descriptor = os.open(runs, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    return try_it


def test_data_are_prepared_alone_and_set_up_together(is_free, runs):
    free = {}

    class Looking(DataModule):
        def prepare_data(self):
            free["while prepared"] = is_free(fcntl.LOCK_EX), is_free(fcntl.LOCK_SH)

        def setup(self, stage):  # noqa: ARG002
            free["while set up"] = is_free(fcntl.LOCK_EX), is_free(fcntl.LOCK_SH)

    data = use_run_loaders(Looking(4), SimpleNamespace(seed=0))
    data.trainer = SimpleNamespace(default_root_dir=str(runs / "0123/001"))

    data.prepare_data()
    data.setup("fit")

    assert free == {"while prepared": (False, False), "while set up": (False, True)}
    assert is_free(fcntl.LOCK_EX)


def test_data_without_a_trainer_are_set_up_too():
    """As where the memory of a step is traced."""
    data = use_run_loaders(DataModule(4), SimpleNamespace(seed=0))

    data.setup("fit")

    assert len(data.train) == 96
