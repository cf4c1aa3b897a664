"""Errors that a user's code raises, in a line."""

import sysconfig
import traceback
from pathlib import Path

#: Folders of code that is not the user's.
_OURS = tuple(str(Path(__file__).parents[2] / name) for name in ("lightning_modules", "sweeper"))
_NOT_THE_USERS = (*_OURS, *sysconfig.get_paths().values(), "<")


def is_refusal(error: BaseException) -> bool:
    """Whether our code refuses what it was given, rather than a user's fails."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and frames[-1].filename.startswith(_OURS)


def describe_error(error: BaseException) -> str:
    """The text of an error, on a single line, with the user's line that raised it."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    own = [f for f in own if not {"site-packages", "dist-packages"} & {*Path(f.filename).parts}]
    return f"{text.rstrip('.')}, in {own[-1].filename}, line {own[-1].lineno}" if own else text
