"""Follows a number through the project's files, in every process that starts with this.

Put this folder on PYTHONPATH, name a file in SWEEPER_WALK and the global batch in SWEEPER_BATCH.
The first call of a function in a file leaves a line `called FILE`, the first one that has the batch
in its arguments a line `batch FILE`. What runs while a module is imported does not count.
"""

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = f"{Path(__file__).parents[2]}{os.sep}"
PACKAGES = ("sweeper", "lightning_modules", "hydra_plugins")
HOLDS_ALL = "RunTrainer"  # every hook is called with it, as with any Trainer
ROOMS = tuple(f"{ROOT}{name}{os.sep}" for name in PACKAGES)
IS_FUNCTION = 0x1  # CO_OPTIMIZED: not the body of a class or a module
BATCH = int(os.environ.get("SWEEPER_BATCH", "0"))
DEPTH = 5  # a task has a spec, which has a config, which has the batch
called: set[str] = set()
met: set[str] = set()


def note(frame: FrameType, event: str, _: Any) -> None:
    code = frame.f_code
    name = code.co_filename
    if event != "call" or name in met or not is_ours(code) or is_import(frame):
        return
    if name not in called:
        called.add(name)
        write(f"called {name.removeprefix(ROOT)}")
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if any(carries(frame.f_locals.get(argument), DEPTH) for argument in arguments):
        met.add(name)
        write(f"batch {name.removeprefix(ROOT)}")


def write(line: str) -> None:
    with Path(os.environ["SWEEPER_WALK"]).open("a") as file:
        file.write(f"{line}\n")


def is_ours(code: CodeType) -> bool:
    return bool(code.co_flags & IS_FUNCTION) and code.co_filename.startswith(ROOMS)


def is_import(frame: FrameType | None) -> bool:
    """Whether the code of a module is running, other than that of the command."""
    while frame:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False


def carries(value: Any, depth: int) -> bool:
    """Whether the batch is this value, or lies in it."""
    if isinstance(value, str):
        return f"batch={BATCH}" in value
    if isinstance(value, int | float):
        return value == BATCH
    return depth > 0 and any(carries(part, depth - 1) for part in parts(value))


def parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if type(value).__module__.partition(".")[0] not in PACKAGES or isinstance(value, type):
        return []
    if type(value).__name__ == HOLDS_ALL:
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = [*getattr(value, "__dict__", {}).values()]
    for name in slots:
        with suppress(AttributeError):
            found.append(getattr(value, name))
    return found


if "SWEEPER_WALK" in os.environ:
    threading.setprofile(note)
    sys.setprofile(note)
