"""Studies killed at random and repeated, in every kind of storage: nothing lost, nothing double.

`make test-all` kills commands and workers in a journal, the command alone in a database;
`make soak` (SWEEPER_SOAK_KILLS=30) both many times in each.
"""

import itertools
import os
import random
from pathlib import Path

import pandas as pd
import pytest
from disturbed import make_calmly, make_stormily, runs, trials
from postgresql import Server

SOAK_KILLS = int(os.environ.get("SWEEPER_SOAK_KILLS", "0"))
#: What is killed in each storage, one after the other.
KILLS = {
    "journal": ["command", "worker", "command"],
    "sqlite": ["command"],
    "postgresql": ["command"],
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers through /proc"),
]


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("calm")
    make_calmly(results)
    return results


@pytest.fixture(params=list(KILLS))
def storage(request, tmp_path):
    """The storage's words, its URL, and what to kill."""
    kinds = KILLS[request.param]
    if SOAK_KILLS:
        kinds = list(itertools.islice(itertools.cycle(["command", "worker"]), SOAK_KILLS))
    if request.param == "journal":
        yield [], None, kinds
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'tuning.db'}"
        yield [f"hydra.sweeper.storage={url}"], url, kinds
    else:
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        server = Server()
        server.start()
        yield [f"hydra.sweeper.storage={server.url}"], server.url, kinds
        server.stop()
        server.remove()


def test_studies_killed_at_random_and_repeated_are_as_undisturbed_ones(calm, tmp_path, storage):
    """SIGKILL to the command and to workers: the same numbers, parameters, values, and runs."""
    words, url, kinds = storage

    hit = make_stormily(tmp_path / "stormy", kinds, random.Random(len(kinds)), *words)

    assert all(hit[kind] >= 1 for kind in kinds)
    stormy = trials(url, tmp_path / "stormy")
    assert stormy == trials(None, calm)
    assert [len(found) for found in stormy.values()] == [3, 3]
    pd.testing.assert_frame_equal(runs(tmp_path / "stormy"), runs(calm), check_exact=True)
    assert set(runs(calm)["outcome"]) == {"finished"}
