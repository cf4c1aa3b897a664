"""Fixtures that most tests share: the composed default config and small sweeps."""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hypothesis import settings

from sweeper import CONFIG_FOLDER
from sweeper.cli import main
from sweeper.commands.overrides import (
    CONFIG_NAME,
    add_own_classes,
    expand,
    plain_config,
    to_plain_values,
)
from sweeper.commands.sweep import run_sweep
from sweeper.launch.fork_server import open_fork_server
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.launch.ranks import LocalRanks
from sweeper.store.ledger import Ledger
from sweeper.upstream.hydras import VERSION_BASE, compose_config

Config = dict[str, Any]

# What is imported stays: to look for garbage in it takes a quarter of the time of collection.
gc.disable()

settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")

# Tests press Ctrl-C; a shell that runs the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Test processes that share the work are said to have 80 columns, and what they start with them.
os.environ.pop("COLUMNS", None)

# Several test processes share the cores; torch would start a thread for each core in all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# One fork server serves all tests of this process, whichever starts it: torch is imported once.
open_fork_server()

# Workers import what tests name by `_target_` from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)

#: What takes longest starts first; SLURM's tests mostly wait, while others use the processors.
_FIRST = (
    "slurm/test_time_limits.py",
    "slurm/test_interruptions.py",
    "slurm/test_places.py",
    "sweeper/tuning/test_known_answer.py",
    "sweeper/test_malformed_command_lines.py",
    "slurm/test_slurm.py",
    "slurm/test_arrays.py",
    "test_disturbances.py",
    "test_soak.py",
    "test_straight_line.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turns = {Path(__file__).parent / name: turn for turn, name in enumerate(_FIRST)}
    items.sort(key=lambda item: turns.get(item.path, len(turns)))


def pytest_collection_finish() -> None:
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


@pytest.fixture(autouse=True)
def _ctrl_c():
    """A command that was stopped ignores further presses; the test process must not."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def loader() -> ConfigLoader:
    """Hydra's config loader over conf/."""
    with initialize_config_dir(**VERSION_BASE, config_dir=str(CONFIG_FOLDER)):
        return GlobalHydra.instance().config_loader()


@pytest.fixture(scope="session")
def default_config() -> Config:
    """conf/ as it is, resolved."""
    with initialize_config_dir(**VERSION_BASE, config_dir=str(CONFIG_FOLDER)):
        return plain_config(compose(CONFIG_NAME))


@pytest.fixture
def config(default_config: Config) -> Callable[..., Config]:
    """The default config with some keys replaced: ``config(batch=7680)``."""
    return lambda **changes: {**default_config, **changes}


@pytest.fixture(scope="session")
def grid(loader: ConfigLoader) -> Callable[..., list[Config]]:
    """The configs of a grid: ``grid("batch=3840,7680", "warmup=0")``; tests may change them."""
    return lambda *words: deepcopy(list(expand(loader, words)))


@pytest.fixture(scope="session")
def sweeper_settings(loader: ConfigLoader) -> Callable[..., Config]:
    """What `hydra.sweeper` has with some words: ``sweeper_settings("hydra/sweeper=optuna")``."""
    return cache(
        lambda *words: to_plain_values(compose_config(loader, CONFIG_NAME, words).hydra.sweeper)
    )


@pytest.fixture(scope="session")
def sweep_here(loader: ConfigLoader) -> Callable[..., int]:
    """Sweep in this process: ``sweep_here(results, "batch=3840,7680")`` gives the exit code."""

    def sweep(results: Path, *words: str, ranks: LocalRanks | None = None) -> int:
        configs = list(expand(loader, add_own_classes([*words, f"results={results}"])))
        machine = Machine(cores=2, jobs=1)
        return run_sweep(configs, lambda tasks, on: run_here(tasks, on, machine, ranks=ranks))

    return sweep


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`sweeper WORDS` in this process: its code and what it printed."""

    def call(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["sweeper", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder that does not exist yet."""
    return tmp_path / "results"


@pytest.fixture
def ledger(results: Path) -> Ledger:
    """The ledger of that folder, which is made."""
    made = Ledger(results)
    made.prepare()
    return made


@pytest.fixture(scope="module")
def browser():
    """A real Chromium without a window."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("Chromium and chromedriver are not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()
