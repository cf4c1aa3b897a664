"""The recipes of containers: the same files and the same commands for Docker and for Apptainer.

No image is built here, since that downloads several GB; containers/install.sh is what both run.
"""

import re
import tomllib

from sweeper import CONFIG_FOLDER

ROOT = CONFIG_FOLDER.parent
RECIPES = ROOT / "containers"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def docker() -> str:
    return (RECIPES / "Dockerfile").read_text()


def apptainer() -> dict[str, str]:
    """The sections of the definition by name."""
    parts = re.split(r"(?m)^%(\w+)\n", (RECIPES / "sweeper.def").read_text())
    return {"header": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def copied(lines: str) -> set[str]:
    """What lines of source paths and one destination each copy."""
    return {path for line in lines.splitlines() for path in line.split()[:-1]}


def test_both_recipes_copy_all_that_the_package_is_built_from():
    needed = {"pyproject.toml", PROJECT["project"]["readme"], "containers/install.sh"}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed |= {*wheel["packages"], *wheel.get("force-include", {}), "LICENSE"}

    by_docker = copied("\n".join(re.findall(r"(?m)^COPY (.*)$", docker())))

    assert by_docker == copied(apptainer()["files"]) == needed
    assert all((ROOT / path).exists() for path in needed)


def test_both_recipes_start_from_the_same_system_and_run_the_same_commands():
    (system,) = re.findall(r"(?m)^FROM (\S+)$", docker())
    (folder,) = re.findall(r"(?m)^WORKDIR (/opt/\S+)$", docker())
    (command,) = re.findall(r"(?m)^RUN (.*)$", docker())

    assert f"From: {system}\n" in apptainer()["header"]
    assert apptainer()["post"].split("\n")[:2] == [f"    cd {folder}", f"    {command}"]
    assert "PATH=/opt/sweeper/bin:$PATH" in docker()
    assert "PATH=/opt/sweeper/bin:$PATH" in apptainer()["environment"]


def test_the_extras_that_they_install_exist():
    (extras,) = re.findall(r"'\.\[(.*)\]'", (RECIPES / "install.sh").read_text())

    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
