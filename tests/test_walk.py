"""docs/walk.md is the way that the batch takes, file by file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/walk.md").read_text()
BATCH = 6400  # in two micro-batches; no default, and no other number of the run
POINT = ["epochs=1", "warmup=0", "data.num_train_examples=12800", "schedule.milestones=[]"]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files whose functions are called with the batch, in the order of the first calls."""
    folder = tmp_path_factory.mktemp("walk")
    command = [sys.executable, "-m", "sweeper", "-m", f"batch={BATCH}", *POINT]
    path = [str(ROOT / "tests/walk"), os.environ.get("PYTHONPATH", "")]
    follow = {
        "SWEEPER_WALK": str(folder / "walk"),
        "SWEEPER_BATCH": str(BATCH),
        "PYTHONPATH": os.pathsep.join(path),
    }
    subprocess.run(
        [*command, f"results={folder}/results"], env={**os.environ, **follow}, check=True
    )
    calls = [line.split() for line in (folder / "walk").read_text().splitlines()]
    return list(dict.fromkeys(file for kind, file in calls if kind == "batch"))


@pytest.mark.slow
def test_the_page_names_the_files_that_the_batch_passes_and_no_others(walked):
    assert set(re.findall(r"^\d+\. `([\w/]+\.py)`", TEXT, re.MULTILINE)) == set(walked)


@pytest.mark.slow
def test_a_reader_who_follows_the_batch_meets_46_files_at_most(walked):
    assert walked[0] == "sweeper/cli.py"
    assert {"lightning_modules/train.py", "sweeper/store/table_files.py"} <= {*walked}
    assert len(walked) <= 46
