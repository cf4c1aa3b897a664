"""House rules that no linter knows: where files stand, and which batch is meant."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sweeper", "lightning_modules", "analysis", "hydra_plugins")
DRAWERS = {"utils", "util", "helpers", "common", "misc", "tools", "base"}

#: The straight line; everything else lives in a room.
FLAT = {
    "sweeper": {"__init__", "__main__", "cli"},
    "lightning_modules": {
        "__init__",
        "train",
        "worker",
        "rank_plan",
        "run_class",
        "answer_process",
    },
    "analysis": {"__init__", "__main__", "cli"},
}


def python_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_no_module_is_a_drawer():
    assert [str(path) for path in python_files() if path.stem in DRAWERS] == []


@pytest.mark.parametrize("package", FLAT)
def test_only_the_straight_line_stands_flat_in_a_package(package):
    assert {path.stem for path in (ROOT / package).glob("*.py")} <= FLAT[package]


def test_a_batch_is_global_or_micro():
    """`batch_size` says neither; as a keyword, of others and for others it stays."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in python_files()
        for line in path.read_text().splitlines()
        if re.search(r"(?<![.\"])(?<!def )\bbatch_size\b(?!=)", line)
    ]

    assert found == []


def test_no_file_name_stands_twice_but_those_with_one_meaning():
    count = Counter(path.stem for path in python_files())
    kept = {"__init__", "__main__", "cli", "command", "figures", "launcher"}

    assert [name for name, times in count.items() if times > 1 and name not in kept] == []
