"""Checks that the named classes and models can exist, by reading sources: nothing is imported."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sweeper.spec.sentences import did_you_mean

_LIBRARIES = {
    "lightning_modules.models.library.timm_model": "timm",
    "lightning_modules.models.library.torchvision_model": "torchvision",
}

_LONGEST_NAME = 255  # of a file, on any file system


def check_names(named: Iterable[tuple[str, str, str | None]]) -> None:
    """Refuse classes and models that certainly do not exist.

    Args:
        named: for each group, its key, its `_target_` and its `name`.

    Raises:
        ValueError: with a line of key, name and remedy for each.
    """
    mistakes = sorted({_mistake(key, target, str(name)) for key, target, name in {*named}} - {""})
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _mistake(key: str, target: str, name: str) -> str:
    if not _may_exist(target):
        return (
            f"{key}._target_ must name something that can be imported; got "
            f"{key}._target_={target!r}, which does not exist. Correct it, install its package or "
            "put its folder on PYTHONPATH."
        )
    return _mistake_in_model(_LIBRARIES[target], name) if target in _LIBRARIES else ""


def _mistake_in_model(library: str, name: str) -> str:
    words, models = _models(library)
    if not words:
        return f"model={library} needs the package {library}. Install it: pip install {library}."
    if name.partition(".")[0] in words:  # after the dot: which pretrained weights
        return ""
    mistake = f"model.name must be a model of {library}; got model.name={name!r}."
    return f"{mistake} {did_you_mean(name, models, 'model.name=')}".rstrip()


@cache
def _models(library: str) -> tuple[frozenset[str], list[str]]:
    """All words in the sources of a library's models, and the names registered as models."""
    found = find_spec(library)
    folders = found.submodule_search_locations if found else None
    files = Path(folders[0], "models").rglob("*.py") if folders else ()
    text = "\n".join(file.read_text(errors="replace") for file in files)
    models = re.findall(r"@register_model.*?\ndef (\w+)\(", text, re.DOTALL)
    return frozenset(re.findall(r"\w+", text)), sorted(models)


def _may_exist(dotted: str) -> bool:
    """Whether a dotted path may name something; false only if no source can define it."""
    top, *rest = dotted.split(".")
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None or not rest or len(max(rest, key=len)) > _LONGEST_NAME:
        return False
    file = Path(found.origin) if found.origin and found.origin.endswith(".py") else None
    folder = Path(next(iter(found.submodule_search_locations or ()), "/dev/null"))
    for name in rest:
        if (folder / name).is_dir():
            folder, file = folder / name, folder / name / "__init__.py"
        elif (folder / f"{name}.py").is_file():
            folder, file = Path("/dev/null"), folder / f"{name}.py"
        else:
            return file is None or not file.is_file() or _may_define(file, name)
    return True


def _may_define(file: Path, name: str) -> bool:
    """Whether a module may define a name: its text has it, or it can define names dynamically."""
    text = file.read_text(errors="replace")
    return bool(re.search(rf"\b{re.escape(name)}\b|import \*|__getattr__|globals\(\)", text))
