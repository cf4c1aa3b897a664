"""Why a command line is refused, in sentences; Hydra's messages in our form."""

import difflib
import re
import sys
from collections.abc import Iterable

from sweeper import CONFIG_FOLDER
from sweeper.spec.exit_codes import BAD_INPUT


def refuse(error: Exception, heading: str = "Nothing was started.") -> int:
    """Print why nothing was started; return the exit code."""
    sys.stderr.write(f"{heading}\n{sentence(str(error))}\n")
    return BAD_INPUT


def sentence(text: str) -> str:
    """Hydra's message in our form: what must hold, what was given, what to do."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    if unknown_key := re.match(r"Could not override '(?P<key>[^']*)'", text):
        return _unknown_to_hydra(unknown_key["key"])
    if unknown_option := re.search(r"Could not find '(?P<group>[^']*)/(?P<option>[^'/]*)'", text):
        return _unknown_option(unknown_option["group"], unknown_option["option"], text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line for line in lines if not line.startswith("See http"))


def unknown_key(key: str, given: str, *, inside: str, known: Iterable[str]) -> str:
    """Why an override cannot be followed.

    `inside` is the part of the key that exists, empty if none does, and `known` the keys in
    there.
    """
    prefix = f"{inside}." if inside else ""
    close = difflib.get_close_matches(key.removeprefix(prefix).split(".")[0], known, n=1)
    listed = f"Known keys{f' of {inside}' if inside else ''}: {', '.join(sorted(known))}."
    hint = f"Did you mean {prefix}{close[0]}?" if close else listed
    return f"{key} is not a config key; got {given}. {hint}"


def _unknown_to_hydra(key: str) -> str:
    keys = re.findall(r"^(\w+):", (CONFIG_FOLDER / "config.yaml").read_text(), re.MULTILINE)
    groups = [path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()]
    close = difflib.get_close_matches(key, [*keys, *groups], n=1) if "." not in key else []
    hint = f"Did you mean {close[0]}?" if close else "See them all with --cfg job."
    return f"{key} is not a config key. {hint}"


def _unknown_option(group: str, option: str, text: str) -> str:
    _, _, listed = text.partition("Available options in")
    known = [line.strip() for line in listed.splitlines()[1:]]
    known = [line for line in known if re.fullmatch(r"[\w.-]+", line)]
    close = difflib.get_close_matches(option, known, n=1)
    hint = f" Did you mean {group}={close[0]}?" if close else ""
    return f"{group} must be one of {', '.join(known)}; got {group}={option}.{hint}"
