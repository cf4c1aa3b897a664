"""Every command of docs/commands.md is run: on the results of a small demo, or by a named test."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Batches of about a tenth of the demo's.
DEMO = ["batch=384,3840", "warmup=0,5,10,20"]
#: A sixteenth of its examples and the fewest epochs that its warmups allow.
BRIEF = ["epochs=21", "data.num_train_examples=3840", "schedule=constant"]
RUN_ID = "RUN_ID"

#: What the page's table has one type, and the command lines that are run for it, or the test.
COMMANDS: dict[str, list[list[str]] | str] = {
    "sweeper -m batch=… warmup=… lr_rule=linear,none seed=0,1,2": [["-m", *DEMO, *BRIEF]],
    "sweeper -m +experiment=mccord2021_warmup": "tests/sweeper/test_presets.py",
    "sweeper -m … +recipe=goyal2017": "tests/sweeper/test_recipes.py",
    "sweeper -m module._target_=myproj.Module data._target_=myproj.DataModule metric=val/acc "
    "metric_mode=max …": "tests/lightning_modules/test_own_project.py",
    "sweeper -m … hydra/launcher=slurm": "tests/slurm/test_slurm.py",
    "torchrun --nproc-per-node=2 -m sweeper …": "tests/sweeper/launch/torchrun/test_torchrun.py",
    "sweeper -m … hydra/sweeper=optuna": "tests/sweeper/tuning/test_going_on.py",
    "sweeper -m … hydra/sweeper=sequential question='no worse than base_batch within 0.3 points'": (
        "tests/sweeper/commands/test_sequential.py"
    ),
    "sweeper plan …": [["plan", *DEMO, *BRIEF], ["plan", *DEMO, *BRIEF, "--json"]],
    "sweeper status [results or RUN_ID]": [
        ["status"],
        ["status", "results"],
        ["status", RUN_ID],
        ["status", "--json"],
    ],
    "sweeper equivalence …": "tests/sweeper/commands/test_equivalence.py",
    "sweeper doctor": [["doctor"]],
    "sweeper compact [results]": [["compact"], ["compact", "results"]],
    "sweeper analysis figures": [["analysis", "figures"]],
    "table": [["analysis", "table"]],
    "paper": [["analysis", "paper", "mccord2021"]],
    "claims": [["analysis", "claims"]],
    "estimates": [["analysis", "estimates"]],
    "report": [["analysis", "report"]],
    "sweeper analysis next": [["analysis", "next"]],
    "sweeper analysis frontier --cluster summit --target 0.75": (
        "tests/analysis/frontier/test_frontier_command.py"
    ),
    'pandas.read_parquet("results/runs")': "tests/test_straight_line.py",
}


def typed() -> list[str]:
    """The first cells of the page's table of commands, one for each that is in backticks."""
    table = (ROOT / "docs/commands.md").read_text().split("| you type |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [command for cell in cells for command in re.findall(r"`([^`]+)`", cell)]


def test_every_command_of_the_page_is_run():
    assert typed() == list(COMMANDS)
    assert all((ROOT / path).exists() for path in COMMANDS.values() if isinstance(path, str))


@pytest.fixture(scope="module")
def demo(sweep_here, tmp_path_factory):
    """A folder in which the demo was run."""
    folder = tmp_path_factory.mktemp("demo")
    assert sweep_here(folder / "results", *DEMO, *BRIEF) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [line for lines in COMMANDS.values() if isinstance(lines, list) for line in lines],
    ids=" ".join,
)
def test_a_command_of_the_page_on_the_demos_results(demo, words):
    run_id = next((demo / "results/runs").glob("*.parquet")).name.partition("-")[0]
    words = [run_id if word == RUN_ID else word for word in words]
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
