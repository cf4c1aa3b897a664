"""The user's own code that a run executes: the sources of the packages that its config names."""

import ast
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from sweeper.store.publish import publish_json, publish_text, read_as

#: Not user code: our packages, the standard library, and the target of `optimizer=module`.
_OURS = frozenset({"lightning_modules", "sweeper", "analysis"})
_NO_USERS = _OURS | sys.stdlib_module_names
_NO_IMPORT = "module.configure_optimizers"
#: Folders of installed packages, also of other environments that cluster modules put on the path.
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_INSTALLED = frozenset({"purelib", "platlib", "stdlib", "platstdlib"})
_RECORD = "code.txt"


def user_code(targets: Iterable[str]) -> dict[str, str]:
    """Hashes of the sources of every user package or module that a config names.

    A package counts as a whole, since what `_target_` names may import the rest of it; other user
    packages that these sources import count too. Installed packages do not count, nor do our own.

    Args:
        targets: every `_target_` of a config.

    Returns:
        A hash of 8 hexadecimal digits for each path, relative to the folder that holds the package.
    """
    tops, contents = list(find_own_packages(targets)), dict[str, bytes]()
    for top in tops:  # the list grows in the loop
        sources = {path: file.read_bytes() for path, file in _sources(top)}
        imported = set[str]().union(*map(_imported_names, sources.values()))
        tops += sorted(filter(_is_own, imported - _NO_USERS.union(tops)))
        contents |= sources
    return {path: hashlib.sha256(contents[path]).hexdigest()[:8] for path in sorted(contents)}


def find_own_packages(targets: Iterable[str]) -> tuple[str, ...]:
    """Names of the top-level packages and modules that are neither ours nor installed."""
    tops = {target.partition(".")[0] for target in targets if target != _NO_IMPORT}
    return tuple(sorted(filter(_is_own, tops - _OURS)))


@cache
def _imported_names(source: bytes) -> frozenset[str]:
    """Top-level names that a source imports by statement."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):  # written for another version of Python
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return frozenset(name.partition(".")[0] for name in [*names, *(f.module or "" for f in froms)])


def code_hash(code: Mapping[str, str]) -> str | None:
    """A single hash of all sources: 12 hexadecimal digits; None if there are none."""
    text = json.dumps(code, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if code else None


def record_code(
    code: Mapping[str, str], folder: Path, results: Path, *, resumed: Path | None = None
) -> None:
    """Record the hash of an attempt's sources in its folder, and their list in the results folder.

    Args:
        code: as returned by `user_code`; if empty, nothing is recorded.
        folder: of the attempt.
        results: the results folder.
        resumed: folder of the attempt that it resumes from, whose hashes are listed after its own.
    """
    if (digest := code_hash(code)) is None:
        return
    if not (path := results / "code" / f"{digest}.json").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_json(path, dict(code))
    before = read_hashes(resumed) if resumed else []
    publish_text(folder / _RECORD, "\n".join(dict.fromkeys([digest, *before])))


def read_hashes(folder: Path) -> list[str]:
    """The hash of an attempt's sources, then those of other sources that earlier attempts used."""
    try:
        return (folder / _RECORD).read_text(errors="replace").splitlines()
    except OSError:
        return []


def read_code(digest: str | None, results: Path) -> dict[str, str]:
    """The stored list of the sources with this hash; empty if there is none."""
    return read_as(dict[str, str], results / "code" / f"{digest}.json") or {}


def _find_spec(top: str) -> ModuleSpec | None:
    try:
        return find_spec(top)  # a name without dots: imports nothing
    except ValueError:  # a module without a spec, such as __main__
        return None


def _sources(top: str) -> list[tuple[str, Path]]:
    """The files of a package or module, by path relative to the folder that holds it."""
    if (spec := _find_spec(top)) is None:
        return []
    found: list[tuple[str, Path]] = []
    for package in map(Path, spec.submodule_search_locations or ()):
        for root, folders, names in os.walk(package):
            folders[:] = [name for name in folders if not name.startswith(".")]  # such as .venv
            files = [Path(root, name) for name in names if name.endswith(".py")]
            found += [(file.relative_to(package.parent).as_posix(), file) for file in files]
    if not spec.submodule_search_locations:
        file = Path(spec.origin or "")
        found = [(file.name, file)] if file.suffix == ".py" else []  # otherwise compiled
    return sorted(found)


@cache
def _is_own(top: str) -> bool:
    """Whether a name is found, and outside the folders of Python and of installed packages."""
    if (spec := _find_spec(top)) is None:
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    paths = [Path(place).resolve() for place in places]
    folders = {Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED}
    return all(
        folders.isdisjoint(path.parents) and _PACKAGES.isdisjoint(path.parts) for path in paths
    )
