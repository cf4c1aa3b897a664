"""House rules that no linter knows: where files stand, and words that went."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sweeper", "lightning_modules", "analysis", "hydra_plugins")
LONGEST = 300  # lines
DRAWERS = {"utils", "util", "helpers", "common", "misc", "tools", "base"}

#: The straight line; everything else lives in a room.
FLAT = {
    "sweeper": {"__init__", "__main__", "cli"},
    "lightning_modules": {"__init__", "train", "worker", "rank_plan"},
    "analysis": {"__init__", "__main__", "cli"},
}

#: Words of an earlier dialect, and what the field says instead.
SAY_INSTEAD = {
    "asked to leave": "asked to stop",
    "let go": "release, remove",
    "foretold": "predicted",
    "outweighs": "takes precedence over",
    "alone rules": "only ... applies",
    "under way": "running",
    "what came of": "outcome",
    "part_epoch": "mid-epoch state",
    "cautions": "warnings",
    "heart beats": "heartbeat",
    "once more": "again",
    "taken for dead": "presumed dead",
    "users' words": "keys that users type",
    "goes on from": "resumes from",
    "go on from": "resume from",
    "anew": "again",
    "beforehand": "in advance",
    "to be had": "available",
}


def python_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def texts() -> dict[str, str]:
    docs = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    conf = list((ROOT / "conf").rglob("*.yaml"))
    return {str(p.relative_to(ROOT)): p.read_text() for p in [*python_files(), *docs, *conf]}


def test_no_file_is_longer_than_a_reader_keeps_in_mind():
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in python_files()}

    assert {name for name, lines in lengths.items() if lines > LONGEST} == set()


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


@pytest.mark.parametrize("word", SAY_INSTEAD)
def test_the_fields_words_are_used(word):
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)

    found = [name for name, text in texts().items() if pattern.search(text)]

    assert found == [], f"say {SAY_INSTEAD[word]!r} instead of {word!r}"
