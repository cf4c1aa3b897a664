"""optuna-dashboard, a program of its own, opens the journal of a study: seen in a real Chromium."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution

from sweeper.tuning.point_study import PointStudy
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import StudySettings, parse_objective

SPACE = {"base_lr": FloatDistribution(1e-3, 1, log=True)}


@pytest.fixture
def journal(results) -> Path:
    """Of a study of three trials: one finished, one diverged, one running."""
    settings = StudySettings(
        space=SPACE, objective=parse_objective("val_loss"), sampler_seed=0,
        sampler={"_target_": "optuna.samplers.RandomSampler"},
        pruner={"_target_": "optuna.pruners.NopPruner"},
    )  # fmt: skip
    study = PointStudy("batch=256 made-up", ["batch=256"], settings, open_storage(results))
    for outcome in ("finished", "diverged"):
        row = {"outcome": outcome, "reason": "became non-finite", "peak_memory_gib": 1.0}
        study.tell(study.ask(), {**row, "val_loss": 0.125})
    study.ask()
    return results / "tuning.journal"


@pytest.fixture
def address(journal):
    """Where the dashboard answers."""
    program = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("optuna-dashboard is not installed")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = subprocess.Popen(
        [program, str(journal), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 600
    try:
        while not answers(url):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/api/meta", timeout=60).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def text_of(browser, url: str, last_to_come: str) -> str:
    browser.get(url)
    deadline = time.monotonic() + 120
    while last_to_come not in (text := browser.find_element("css selector", "body").text):
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    return text


@pytest.mark.slow
def test_the_dashboard_shows_the_trials_of_a_journal(browser, address):
    shown = text_of(browser, f"{address}/dashboard/studies/0/trials?numbers=1", "outcome diverged")
    history = text_of(browser, f"{address}/dashboard/studies/0", "val_loss")

    assert "batch=256 made-up" in shown
    assert "3 Trials" in shown
    assert "became non-finite" in shown
    assert "inf" in shown
    assert "History" in history
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
