"""Why a command line is refused, in sentences; Hydra's messages in our form."""

import re
import sys
from collections.abc import Sequence

from sweeper import CONFIG_FOLDER
from sweeper.spec.exit_codes import BAD_INPUT
from sweeper.spec.sentences import did_you_mean


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


def unknown_key(key: str, given: str, *, inside: str, known: Sequence[str]) -> str:
    """Why an override cannot be followed.

    `inside` is the part of the key that exists, empty if none does, and `known` the keys in
    there.
    """
    prefix = f"{inside}." if inside else ""
    listed = f"Known keys{f' of {inside}' if inside else ''}: {', '.join(sorted(known))}."
    hint = did_you_mean(key.removeprefix(prefix).split(".")[0], known, prefix) or listed
    return f"{key} is not a config key; got {given}. {hint}"


def _unknown_to_hydra(key: str) -> str:
    keys = re.findall(r"^(\w+):", (CONFIG_FOLDER / "config.yaml").read_text(), re.MULTILINE)
    groups = [path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()]
    hint = "" if "." in key else did_you_mean(key, [*keys, *groups])
    return f"{key} is not a config key. {hint or 'See them all with --cfg job.'}"


def _unknown_option(group: str, option: str, text: str) -> str:
    _, _, listed = text.partition("Available options in")
    known = [line.strip() for line in listed.splitlines()[1:]]
    known = [line for line in known if re.fullmatch(r"[\w.-]+", line)]
    hint = did_you_mean(option, known, f"{group}=")
    return f"{group} must be one of {', '.join(known)}; got {group}={option}. {hint}".strip()
