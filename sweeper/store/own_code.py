"""The user's own code behind a run: the sources of the packages that its config names."""

import hashlib
import json
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

#: Of no user: ours, and what is installed.
_OURS = frozenset({"lightning_modules", "sweeper", "analysis"})
_INSTALLED = frozenset({"purelib", "platlib", "stdlib", "platstdlib"})


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the sources of every package or module of the user's that a config names.

    A package counts whole, since what `_target_` names may import the rest of it. Installed
    packages do not count (their versions are in the row), nor do our own.

    Args:
        config: resolved; every `_target_` in it is looked at.

    Returns:
        A hash of 8 hexadecimal digits by path, relative to the folder that holds the package.
    """
    tops = sorted({target.partition(".")[0] for target in _targets(config)} - _OURS)
    return {path: digest for top in tops for path, digest in _hashes(top).items()}


def code_hash(code: Mapping[str, str]) -> str | None:
    """One hash of all sources: 12 hexadecimal digits; None if there are none."""
    text = json.dumps(code, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if code else None


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "_target_" and isinstance(value, str):
                yield value
            else:
                yield from _targets(value)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for value in node:
            yield from _targets(value)


@cache
def _hashes(top: str) -> dict[str, str]:
    spec = PathFinder.find_spec(top)  # imports nothing
    if spec is None or _is_installed(spec):
        return {}
    if spec.submodule_search_locations:
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        files = [(path, folder.parent) for folder in folders for path in folder.rglob("*.py")]
    else:
        file = Path(spec.origin or "")
        files = [(file, file.parent)] if file.suffix == ".py" else []  # else compiled
    return {path.relative_to(root).as_posix(): _hash(path) for path, root in files}


def _is_installed(spec: ModuleSpec) -> bool:
    """Whether it lies where pip or Python itself put it."""
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    folders = {Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED}
    return any(not folders.isdisjoint(Path(place).resolve().parents) for place in places)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]
