"""Studies killed at random and repeated, in every kind of storage: nothing lost, nothing double.

`make test-all` kills a few times; `make soak` (SWEEPER_SOAK_KILLS=30) many times.
"""

import itertools
import os
import random
from pathlib import Path

import pandas as pd
import pytest
from disturbed import make_calmly, make_stormily, runs, trials
from postgresql import Server

KILLS = int(os.environ.get("SWEEPER_SOAK_KILLS", "3"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers through /proc"),
]


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("calm")
    make_calmly(results)
    return results


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def storage(request, tmp_path):
    """The storage's words, and its URL."""
    if request.param == "journal":
        yield [], None
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'tuning.db'}"
        yield [f"hydra.sweeper.storage={url}"], url
    else:
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        server = Server()
        server.start()
        yield [f"hydra.sweeper.storage={server.url}"], server.url
        server.stop()
        server.remove()


def test_studies_killed_at_random_and_repeated_are_as_undisturbed_ones(calm, tmp_path, storage):
    """SIGKILL to the command and to workers: the same numbers, parameters, values, and runs."""
    words, url = storage
    kinds = list(itertools.islice(itertools.cycle(["command", "worker"]), KILLS))

    hit = make_stormily(tmp_path / "stormy", kinds, random.Random(KILLS), *words)

    assert hit["command"] >= 1
    assert hit["worker"] >= 1
    stormy = trials(url, tmp_path / "stormy")
    assert stormy == trials(None, calm)
    assert [len(found) for found in stormy.values()] == [3, 3]
    pd.testing.assert_frame_equal(runs(tmp_path / "stormy"), runs(calm), check_exact=True)
    assert set(runs(calm)["outcome"]) == {"finished"}
