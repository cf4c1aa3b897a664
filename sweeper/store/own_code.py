"""The user's own code behind a run: the sources of the packages that its config names."""

import ast
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from sweeper.store.publish import publish_json, publish_text, read_mapping

#: Of no user: ours, `optimizer=module`, and what is installed.
_OURS = frozenset({"lightning_modules", "sweeper", "analysis"})
_NO_USERS = _OURS | sys.stdlib_module_names
_NO_IMPORT = "module.configure_optimizers"
#: Folders of packages, also of other environments: a cluster's modules put those on the path.
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_INSTALLED = frozenset({"purelib", "platlib", "stdlib", "platstdlib"})
_NOTE = "code.txt"


def own_code(targets: Iterable[str]) -> dict[str, str]:
    """Hashes of the sources of every package or module of the user's that a config names.

    A package counts whole, since what `_target_` names may import the rest of it, and so does what
    these sources import of the user's. Installed packages do not count (their versions are in the
    row), nor do our own.

    Args:
        targets: every `_target_` of a config.

    Returns:
        A hash of 8 hexadecimal digits by path, relative to the folder that holds the package.
    """
    files = [pair for top in _with_imports(own_tops(targets)) for pair in _sources(top)]
    return {path: _hash(file) for path, file in files}


def own_tops(targets: Iterable[str]) -> tuple[str, ...]:
    """The packages and modules that are neither ours nor installed, by name."""
    tops = {target.partition(".")[0] for target in targets if target != _NO_IMPORT}
    return tuple(sorted(filter(_is_own, tops - _OURS)))


def _with_imports(tops: Iterable[str]) -> Sequence[str]:
    """Packages and modules of the user's with those that they import, and these in turn."""
    found = list(tops)
    for top in found:  # which grows
        known = _NO_USERS.union(found)
        found += sorted(name for name in _imported(top) - known if _is_own(name))
    return sorted(found)


def _imported(top: str) -> set[str]:
    """Packages and modules that the sources of one import by a statement."""
    return {name for _, file in _sources(top) for name in _imported_by(file.read_bytes())}


@cache
def _imported_by(source: bytes) -> frozenset[str]:
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):  # not for this version of Python
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return frozenset(name.partition(".")[0] for name in [*names, *(f.module or "" for f in froms)])


def code_hash(code: Mapping[str, str]) -> str | None:
    """One hash of all sources: 12 hexadecimal digits; None if there are none."""
    text = json.dumps(code, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if code else None


def note_code(
    code: Mapping[str, str], folder: Path, results: Path, *, resumed: Path | None = None
) -> None:
    """Note in an attempt's folder which sources it is made with, and beside the results their list.

    Args:
        code: as of `own_code`; nothing is noted of none.
        folder: of the attempt.
        results: of all runs.
        resumed: folder of the attempt that it resumes from, whose sources are noted below its own.
    """
    if (digest := code_hash(code)) is None:
        return
    if not (path := _path(digest, results)).exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_json(path, dict(code))
    before = _noted(resumed) if resumed else []
    publish_text(folder / _NOTE, "\n".join(dict.fromkeys([digest, *before])))


def noted_code(folder: Path) -> str | None:
    """The hash of the sources that an attempt is made with; None if there were none."""
    return next(iter(_noted(folder)), None)


def resumed_code(folder: Path) -> str | None:
    """The hashes of other sources that the run was begun with, by commas; None if of none."""
    return ",".join(_noted(folder)[1:]) or None


def _noted(folder: Path) -> list[str]:
    try:
        return (folder / _NOTE).read_text().splitlines()
    except FileNotFoundError:
        return []


def kept_code(digest: str | None, results: Path) -> dict[str, str]:
    """The list beside the results of the sources with that hash; empty if there is none."""
    return read_mapping(_path(str(digest), results))


def _path(digest: str, results: Path) -> Path:
    return results / "code" / f"{digest}.json"


def _spec(top: str) -> ModuleSpec | None:
    try:
        return find_spec(top)  # of a name without dots: imports nothing
    except ValueError:  # a module that stands for itself, as __main__
        return None


def _sources(top: str) -> list[tuple[str, Path]]:
    """The files of a package or module, by path relative to the folder that holds it."""
    if (spec := _spec(top)) is None:
        return []
    if spec.submodule_search_locations:
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        files = [(path, folder.parent) for folder in folders for path in _python_files(folder)]
    else:
        file = Path(spec.origin or "")
        files = [(file, file.parent)] if file.suffix == ".py" else []  # else compiled
    return sorted((path.relative_to(root).as_posix(), path) for path, root in files)


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]  # such as .venv
        yield from (Path(root, name) for name in files if name.endswith(".py"))


@cache
def _is_own(top: str) -> bool:
    """Whether it is found, and not where pip or Python itself puts things."""
    if (spec := _spec(top)) is None:
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    paths = [Path(place).resolve() for place in places]
    folders = {Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED}
    return all(
        folders.isdisjoint(path.parents) and _PACKAGES.isdisjoint(path.parts) for path in paths
    )


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]
