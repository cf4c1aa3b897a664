"""The example of docs/data.md: a data set and a model of one's own, from one's own folders."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

DOCS = Path(__file__).parents[3] / "docs/data.md"


@pytest.fixture
def written(tmp_path):
    """The files of the page, as it says where to put them; returns the command that it gives."""
    page = DOCS.read_text()
    blocks = re.finditer(r"`(my\w+/[\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", page, re.DOTALL)
    for block in blocks:
        path = tmp_path / block[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block[2])
    one_line = page.replace("\\\n", " ")
    return re.search(r"    PYTHONPATH=\. python (-m sweeper --config-dir myconf .*)", one_line)[1]


@pytest.mark.slow
def test_the_page_trains_a_data_set_and_a_model_of_ones_own(written, tmp_path):
    environment = {**os.environ, "PYTHONPATH": "."}

    done = subprocess.run(
        [sys.executable, *shlex.split(written)],
        cwd=tmp_path, env=environment, text=True, capture_output=True, check=False, timeout=900,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    runs = pd.read_parquet(tmp_path / "results/runs").sort_values("global_batch")
    assert list(runs.outcome) == ["finished", "finished"]
    assert list(runs.data) == ["Spirals", "Spirals"]
    assert list(runs.model) == ["Perceptron", "Perceptron"]
    assert list(runs.steps) == [3 * 16, 3 * 4]
    assert list(runs.num_parameters) == [2 * 64 + 64 + 64 * 2 + 2] * 2
