"""What pages name exists, commands print what pages say, and the site builds."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from sweeper.cli import COMMANDS
from sweeper.spec.config import RunConfig

ROOT = Path(__file__).parents[1]
#: Tried by tests of their own, since they train or measure, or take long.
ELSEWHERE = ("doctor", "equivalence", "analysis figures", "sharpness")
#: What of a command stands for the reader's own, and what is said where it is not there.
READERS_OWN = {
    "~/sweeper-conf": "--config-dir must be a folder",
    "configs": "--config-dir must be a folder",
    "/data/flowers": "data.root must hold the folders train and val",
    "/data/cells": "data.root must hold the folders train and val",
    "mynet": "_target_ must name something that can be imported",
    "measured_in=RUN_ID": "needs lr_rule.measured_in, a run in results",
    "measured_in=tuned": "were tuned by hydra/sweeper=optuna at three batches or more; got tuned",
    "optimizer=OPTIMIZER": "optimizer must be one of",
    "myproj": "_target_ must name something that can be imported",
    "analysis tuning": "results must",
    "mine.csv": "got: No such file or directory",
    "dense.csv": "got: No such file or directory",
    "analysis branches mine": "results must be a folder",
    "analysis branches gpt": "results must be a folder",
    "analysis estimates best_batch_lengths": "results must be a folder",
    "work results=/shared/results": "results must be a folder",
}


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
ROOMS = "sweeper|lightning_modules|analysis|tests|conf|benchmarks|docs|examples|hydra_plugins"
#: `name=` in a page that is no key of ours: groups of presets, and arguments in Python.
NO_KEYS = {
    *("ax", "batch_size", "bias", "columns", "dropout", "find_unused_parameters", "install"),
    *("persistent", "shuffle_set_split", "use_reentrant", "weights_only"),  # in Python
    *("cluster", "experiment", "recipe", "group", "extra_steps"),
    *("together", "where", "lengths", "lengths_unit", "cooldown"),  # of a grid
    *("loss", "others"),  # of a table
}


def code_of(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", page.read_text())


def words_of_prose(page: Path) -> int:
    """The words of a page without its code blocks, tables and pictures."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not re.match(r" *\||    +\S|!\[", line)]
    return len(" ".join(lines).split())


def test_pages_have_a_page_s_length():
    assert len((ROOT / "README.md").read_text().split()) <= 700
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 40
    long = {str(page): num for page in PAGES if (num := words_of_prose(page)) > 1000}
    assert long == {}


def test_files_that_pages_name_exist():
    pattern = rf"(?<![\w/.-])((?:{ROOMS})/[\w/]+\.(?:py|yaml|md|toml|ipynb))"
    named = [name for page in PAGES for code in code_of(page) for name in re.findall(pattern, code)]

    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_links_lead_to_files():
    links = [
        (page, target.partition("#")[0])
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if not target.startswith(("http", "#", "reference/"))  # the site makes its reference
    ]

    assert len(links) > 50
    assert [str(to) for page, to in links if not (page.parent / to).exists()] == []


def test_keys_that_pages_name_are_keys():
    named = {
        key
        for page in PAGES
        for code in code_of(page)
        for key in re.findall(r"(?<![\w.\[/-])\+?([a-z_]+)=", code)
    }

    assert {"batch", "warmup", "micro_batch"} <= named
    assert named - NO_KEYS - {*RunConfig.model_fields} == set()


def typed() -> list[str]:
    """The command lines in code blocks, but those with dots for what is left out."""
    found: dict[str, None] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(
            r"^(?: {4,}|)((?:python -m )?(?:sweeper|analysis) .*)$", text, re.MULTILINE
        ):
            found[" ".join(re.sub(r"  #.*", "", line).split()).removeprefix("python -m ")] = None
    return [line for line in found if " ..." not in line]


def as_plan(line: str) -> list[str]:
    """The words of a command; those of a sweep list its runs instead."""
    line = line.removeprefix("sweeper ")
    for folder in ("examples/", "docs/results/mlperf/", "docs/results/critical_batch"):
        line = line.replace(folder, f"{ROOT}/{folder}")
    words = [word for word in shlex.split(line) if word != "-m"]
    words = words if words[0] in COMMANDS else ["plan", *words]
    return [*words, "--no-memory"] if words[0] == "plan" else words


@pytest.mark.slow
def test_every_command_in_the_docs_is_understood(tmp_path):
    lines = [line for line in typed() if not any(name in line for name in ELSEWHERE)]
    assert len(lines) > 20
    cases = [
        {"argv": as_plan(line), "folder": str(tmp_path / str(i))} for i, line in enumerate(lines)
    ]
    for case in cases:
        shutil.copytree(ROOT / "docs/results/digits", Path(case["folder"]) / "results")
    questions, answers = tmp_path / "questions.json", tmp_path / "answers.json"
    questions.write_text(json.dumps(cases))

    subprocess.run([sys.executable, ROOT / "tests/warm_cli.py", questions, answers], check=True)

    for line, said in zip(lines, json.loads(answers.read_text()), strict=True):
        own = next((text for word, text in READERS_OWN.items() if word in line), None)
        assert (said["code"] == 0) == (own is None), (line, said)
        assert (own or "") in said["out"] + said["err"], (line, said)


#: A command, and what follows it, in fences or indented.
PRINTED = re.compile(
    r"(?:`python -m (analysis [^`]+)`(?: says|,[^\n]*)?:\n\n(?:```\n)?"
    r"|^ {4}\$ python -m (analysis (?:[^\n]*\\\n)*[^\n]*)\n)((?: *\S[^`\n]*\n)+)",
    re.MULTILINE,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["results/digits", "results/cifar10_twin", "results/decision", "frontier"]
)
def test_analysis_prints_what_the_docs_say_that_it_printed(page, command, tmp_path, monkeypatch):
    """Each line of a page, in order; the page may leave lines out, and what follows in a line."""
    monkeypatch.chdir(tmp_path)
    Path("docs").symlink_to(ROOT / "docs")
    Path("results").symlink_to(ROOT / "docs/results/warmup")
    found = PRINTED.findall((ROOT / f"docs/{page}.md").read_text())
    assert len(found) >= 2

    for quoted, typed_in, printed in found:
        said = command(*shlex.split((quoted or typed_in).replace("\\\n", " ")))
        lines = iter(said.stdout.splitlines())
        missing = [
            line
            for line in dedent(printed).splitlines()
            if not any(one.startswith(line) for one in lines)
        ]
        assert missing[:1] == [], (quoted or typed_in, said.stderr)


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link_and_opens(tmp_path, browser):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert built.returncode == 0, built.stdout

    commands = (tmp_path / "reference/commands.html").read_text()
    assert ">sweeper analysis report<" in commands
    for page in tmp_path.rglob("*.html"):  # a list that holds code may end before it
        prose = re.sub(r"<(pre|code|h\d).*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r"(python -m |sbatch --|torchrun --|sweeper -m )", prose), page.name

    browser.get((tmp_path / "index.html").as_uri())
    browser.find_element("link text", "Reference").click()
    rows = {
        cells[0].text: [cell.text for cell in cells[1:]]
        for row in browser.find_elements("css selector", "tbody tr")
        if (cells := row.find_elements("css selector", "td"))
    }

    assert rows["batch"][:2] == ["whole number", "3840"]
    assert rows["precision"][0] == "16-mixed, 32-true, 64-true, bf16-mixed"
    assert rows["loss_items"][2].endswith("package.function of a batch")
    assert all(all(cells) for cells in rows.values())
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert all(name.startswith("file:") for name in loaded)
