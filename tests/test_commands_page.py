"""The commands of docs/commands.md are run on the results of a small demo."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Batches of about a tenth of the demo's, a sixteenth of its examples, the fewest epochs.
DEMO = "batch=384,3840 warmup=0,5,10,20 epochs=21 data.num_train_examples=3840 schedule=constant"
RUN_ID = "RUN_ID"

#: Command lines for those of the page that a reader completes.
COMPLETED = {
    "sweeper plan …": [f"plan {DEMO}", f"plan {DEMO} --json"],
    "sweeper status [results or RUN_ID]": [
        "status", "status results", f"status {RUN_ID}", "status --json",
    ],
    "sweeper compact [results]": ["compact", "compact results"],
    "paper": ["analysis paper mccord2021"],
    "sweeper analysis table.csv": [
        f"analysis {ROOT}/docs/results/mlperf/tables/gpt3.csv",
    ],
}  # fmt: skip
#: What trains other runs, starts other programs or needs no results: tested elsewhere.
ELSEWHERE = (
    "…",
    "analysis branches",
    "+experiment",
    "frontier",
    "pandas",
    "sharpness",
    "sweeper.plan",
    "sweeper.run",
    "delete",
    "logs",
    "stop",
)


def command_lines() -> list[str]:
    """The page's table of commands as command lines, without `sweeper`."""
    table = (ROOT / "docs/commands.md").read_text().split("| you type |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    found = [f"-m {DEMO}"]
    for command in re.findall(r"`([^`]+)`", "\n".join(cells)):
        if command in COMPLETED:
            found += COMPLETED[command]
        elif not any(word in command for word in ELSEWHERE):
            is_whole = command.startswith("sweeper ")
            found.append(command.removeprefix("sweeper ") if is_whole else f"analysis {command}")
    return found


def test_the_page_has_the_commands_that_are_completed_here():
    lines = command_lines()

    assert all(line in lines for completed in COMPLETED.values() for line in completed)
    assert {"doctor", "analysis figures", "analysis report", "analysis next"} <= {*lines}


@pytest.fixture(scope="module")
def demo(sweep_here, tmp_path_factory):
    """A folder in which the demo was run."""
    folder = tmp_path_factory.mktemp("demo")
    assert sweep_here(folder / "results", *DEMO.split()) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", command_lines())
def test_a_command_of_the_page_on_the_demos_results(demo, line):
    run_id = next((demo / "results/runs").glob("*.parquet")).name.partition("-")[0]
    words = line.replace(RUN_ID, run_id).split()
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        cwd=demo,
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert done.stdout.strip()
    assert "Traceback" not in said
    if words[0] == "-m":
        assert "8 of 8 runs already have a result." in done.stdout
