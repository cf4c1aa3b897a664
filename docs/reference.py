"""The pages of the reference, made from conf/ and the code: a hook of MkDocs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import analysis
import sweeper
from sweeper import CONFIG_FOLDER
from sweeper.cli import COMMANDS
from sweeper.spec.config import RunConfig
from sweeper.store.schema import TABLES

_KEY = re.compile(r"(?P<key>\w+): +(?P<default>.*?) *(?:# (?P<meaning>.*))?$")
_MORE = re.compile(r" +# (?P<more>.*)$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, page in (
        ("keys", keys()),
        ("options", options()),
        ("columns", columns()),
        ("commands", commands()),
        ("api", api()),
    ):
        text = "\n".join(page)
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def keys() -> Iterator[str]:
    """Every key of conf/config.yaml: type, default, meaning."""
    types = RunConfig.model_json_schema()["properties"]
    yield "# Keys\n\nAny key is set as `key=value`, and swept as `key=a,b`.\n"
    for title, lines in _sections((CONFIG_FOLDER / "config.yaml").read_text()):
        yield f"## {title[0].upper()}{title[1:]}\n"
        yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
        for key, default, meaning in lines:
            kind = " or ".join(_kinds(types[key]))
            yield f"| `{key}` | {kind} | `{default}` | {meaning} |"
        yield ""


def _sections(text: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The titles of config.yaml with their keys, default values and comments."""
    for section in text.split("# --- ")[1:]:
        title, _, body = section.partition("\n")
        found: list[tuple[str, str, str]] = []
        for line in body.split("\nhydra:")[0].splitlines():
            if key := _KEY.match(line):
                found.append((key["key"], key["default"], key["meaning"] or ""))
            elif more := _MORE.match(line):
                found[-1] = (*found[-1][:2], f"{found[-1][2]} {more['more']}")
        yield title.rstrip(" -"), found


def _kinds(schema: dict[str, Any]) -> Iterator[str]:
    """The types of a value in words: whole number, number, text, or the words it may be."""
    if alternatives := schema.get("anyOf"):
        numbers = [one for one in alternatives if one.get("type") == "number"]
        for one in alternatives:
            if not (numbers and one.get("type") == "integer"):  # a number may be whole
                yield from _kinds(one)
    elif words := schema.get("enum", [schema["const"]] if "const" in schema else None):
        yield ", ".join(f"`{word}`" for word in words)
    else:
        yield {"integer": "whole number", "string": "text", "null": "`null`"}.get(
            schema.get("type", "settings"), schema.get("type", "settings")
        )


def options() -> Iterator[str]:
    """Every option of every config group, with its settings."""
    yield "# Options of the groups\n\nA group is set as `group=option`, its settings as"
    yield "`group.key=value`; one with a plus is added as `+group=option`.\n"
    for path in sorted(CONFIG_FOLDER.rglob("*.yaml")):
        group = path.parent.relative_to(CONFIG_FOLDER).as_posix()
        if group != ".":
            plus = "+" if group in ("cluster", "experiment", "recipe") else ""
            yield f"## {plus}{group}={path.stem}\n\n```yaml\n{path.read_text().rstrip()}\n```\n"


def columns() -> Iterator[str]:
    """Every column of every table."""
    yield "# Columns\n\n`analysis.columns()` gives these tables to pandas.\n"
    for table in TABLES:
        yield f"## results/{table}\n\n| column | type | meaning |\n| --- | --- | --- |"
        for name, (kind, meaning) in TABLES[table].items():
            yield f"| `{name}` | {kind} | {meaning} |"
        yield ""


def commands() -> Iterator[str]:
    """What every command says of itself."""
    yield "# Commands\n"
    of_analysis = re.findall(r"^    (\w+)  ", _help("analysis"), re.MULTILINE)
    for words in [(), *((one,) for one in COMMANDS), *(("analysis", one) for one in of_analysis)]:
        said = _help(*words).rstrip()
        yield f"## {' '.join(('sweeper', *words))}\n\n```text\n{said}\n```\n"


def _help(*words: str) -> str:
    command = [sys.executable, "-m", "sweeper", *words, "--help"]
    folder = Path(__file__).parents[1]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def api() -> Iterator[str]:
    """What `sweeper` and `analysis` export for notebooks."""
    yield "# Python\n\n## import sweeper\n"
    for name in ("plan", "run"):
        yield from _describe(getattr(sweeper, name))
    yield "## import analysis\n"
    constants = [name for name in analysis.__all__ if name.isupper()]
    for name in analysis.__all__:
        if name not in constants:
            yield from _describe(getattr(analysis, name))
    for name in constants:
        yield f"### {name}\n\n`{getattr(analysis, name)}`\n"


def _describe(exported: Any) -> Iterator[str]:
    where = f"{exported.__module__}.{exported.__qualname__}"
    yield f"::: {where}\n    options: {{heading_level: 3, show_root_full_path: false}}\n"
