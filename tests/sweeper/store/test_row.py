"""The columns of a run's row."""

import subprocess

import pytest

from sweeper.store.row import git_commit


@pytest.mark.parametrize("error", [BlockingIOError(11, "full"), OSError(12, "no memory")])
def test_a_row_is_made_where_no_process_can_be_started_for_its_commit(monkeypatch, error):
    def refuse(*arguments, **settings):
        del arguments, settings
        raise error

    monkeypatch.setattr(subprocess, "run", refuse)

    assert git_commit.__wrapped__() is None
