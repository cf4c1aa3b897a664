"""What is built for other environments holds all that a sweep and its figures need."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SWEEP = (
    *("-m", "batch=3840", "warmup=0,1", "epochs=2", "data.num_train_examples=3840"),
    "schedule=constant",
)


def said_by(*command: str | Path, folder: Path = ROOT) -> str:
    """A command that nothing of this environment helps."""
    alone = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the archive of the sources and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    said_by(sys.executable, "-m", "build", "--outdir", folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The programs of a new environment: the wheel, and this one's packages without sweeper."""
    environment = tmp_path_factory.mktemp("environment")
    said_by(sys.executable, "-m", "venv", environment)
    (wheel,) = built.glob("*.whl")
    said_by(environment / "bin/python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    (packages,) = environment.glob("lib/python3*/site-packages")
    # Paths that a .pth names are searched, but not for further .pth: not for the editable sweeper.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


@pytest.mark.slow
def test_the_archives_hold_the_packages_and_the_defaults_and_no_tests(built):
    (wheel,), (sources,) = built.glob("*.whl"), built.glob("*.tar.gz")

    names = zipfile.ZipFile(wheel).namelist()
    rooms = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert rooms == {"analysis", "hydra_plugins", "lightning_modules", "sweeper"}
    assert "sweeper/conf/config.yaml" in names
    with tarfile.open(sources) as archive:
        kept = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "conf/config.yaml", "tests/test_package.py"} <= kept


@pytest.mark.slow
def test_a_sweep_and_its_figures_from_an_installed_wheel_in_a_folder_of_the_users(
    installed, tmp_path
):
    where = said_by(
        installed / "python", "-c", "import sweeper; print(sweeper.__file__)", folder=tmp_path
    )
    assert where.startswith(str(installed.parent))

    assert said_by(installed / "sweeper", "--version", folder=tmp_path).startswith("sweeper ")
    said_by(installed / "sweeper", *SWEEP, folder=tmp_path)
    said_by(installed / "sweeper", "analysis", "figures", folder=tmp_path)

    assert len([*(tmp_path / "results/runs").glob("*.parquet")]) == 2
    assert (tmp_path / "figures/accuracy_vs_warmup.png").stat().st_size > 10_000


def from_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["analysis", "lightning_modules"])
@pytest.mark.parametrize("kind", ["package", "file"])
def test_a_package_of_the_users_that_hides_one_of_ours_is_refused(tmp_path, name, kind):
    own = tmp_path / name / "__init__.py" if kind == "package" else tmp_path / f"{name}.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text("")

    said = from_folder(tmp_path, "plan")

    assert said.returncode == 2
    assert f"The import {name} must find sweeper's own package; got {own}" in said.stderr
    assert "Rename that one" in said.stderr


def test_a_folder_that_is_no_package_hides_nothing(tmp_path):
    (tmp_path / "analysis").mkdir()

    assert from_folder(tmp_path, "--version").stdout.startswith("sweeper ")
