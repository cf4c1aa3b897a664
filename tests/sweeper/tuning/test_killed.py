"""Studies killed at random and repeated: nothing lost, nothing double.

`make soak` (SWEEPER_SOAK_KILLS=30) kills many times.
"""

import itertools
import os
import random
from pathlib import Path

import pandas as pd
import pytest
from disturbed import make_calmly, make_stormily, runs, trials

SOAK_KILLS = int(os.environ.get("SWEEPER_SOAK_KILLS", "0"))
#: What is killed, one after the other.
KINDS = ["command", "worker", "command"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers through /proc")
def test_studies_killed_at_random_and_repeated_are_as_undisturbed_ones(tmp_path):
    """SIGKILL to the command and to workers: the same numbers, parameters, values, and runs."""
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    kinds = list(itertools.islice(itertools.cycle(KINDS), SOAK_KILLS or len(KINDS)))
    make_calmly(calm)

    hit = make_stormily(stormy, kinds, random.Random(len(kinds)))

    assert all(hit[kind] >= 1 for kind in kinds)
    found = trials(stormy)
    assert found == trials(calm)
    assert [len(of_study) for of_study in found.values()] == [3, 3]
    pd.testing.assert_frame_equal(runs(stormy), runs(calm), check_exact=True)
    assert set(runs(calm)["outcome"]) == {"finished"}
