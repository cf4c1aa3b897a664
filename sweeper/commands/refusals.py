"""Why a command line is refused, in sentences; Hydra's messages in our form."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sweeper import CONFIG_FOLDER
from sweeper.commands.unknown_keys import (
    OF_PLUGINS,
    hint,
    meant_by,
    no_such_key,
    no_such_option,
)
from sweeper.spec.config import RunConfig
from sweeper.spec.outcomes import BAD_INPUT
from sweeper.spec.sentences import grid_values, printable

#: Errors raised by Hydra and by users' config files.
NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError, ValueError)
#: The middle of a longer line, where the value is, is left out [characters].
_LONGEST = 1000
#: Beginnings of the plain ValueErrors that Hydra raises.
_HYDRAS = ("Config group override must", "No config source", "Expecting one subcommand")


def refuse(error: Exception, heading: str = "Nothing was started.") -> int:
    """Print why nothing was started; return the exit code."""
    words = sys.argv[1:]
    presets = [word for word in words if word.startswith(("+recipe=", "+experiment="))]
    is_ours = type(error) is ValueError and not str(error).startswith(_HYDRAS)
    lines = (str(error) if is_ours else sentence(error, words)).splitlines()
    for number, line in enumerate(lines):
        if setting := re.match(r"(\S+) must be a setting of ", line):
            key = setting[1]
            is_typed = any(word.lstrip("+~").startswith(f"{key}=") for word in words)
            if presets and not is_typed:
                remedy = f"It is set by {' or '.join(presets)}: add ~{key} to remove it."
                lines[number] = f"{line} {remedy}"
        elif unknown := re.match(r"((\w+) must be a config key; got .*?\.) [A-Z].*$", line):
            lines[number] = f"{unknown[1]} {hint(unknown[2])}"
    sys.stderr.write("\n".join([heading, *map(fit_line, lines), ""]))
    return BAD_INPUT


def fit_line(line: str) -> str:
    """A line of a refusal, made printable and shortened if very long."""
    line = printable(line)
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}"


def check_dashes(words: Sequence[str]) -> None:
    """ValueError for a config key that is given as a flag, as in `--batch=256`."""
    for word in words:
        flag, _, value = word.partition("=")
        key = flag.lstrip("-").replace("-", "_")
        meant = meant_by(key)
        if flag.startswith("-") and (meant or key.split(".")[0] in RunConfig.model_fields):
            remedy = meant or f"Write {key}={value or 'VALUE'}."
            msg = f"An override must be KEY=VALUE, without dashes; got {word}. {remedy}"
            raise ValueError(msg)


def check_primary(words: Iterable[str]) -> None:
    """ValueError for another primary config than ours, which has the keys and their defaults."""
    for word in words:
        if word.partition("=")[0] in {"--config-name", "-cn", "--config-path", "-cp"}:
            msg = (
                f"The primary config must be sweeper's own, which has every key; got {word}. Put "
                "your settings into FOLDER/experiment/NAME.yaml, with # @package _global_ in its "
                "first line, and write --config-dir FOLDER +experiment=NAME."
            )
            raise ValueError(msg)


def sentence(error: Exception, given: Sequence[str] = ()) -> str:
    """Hydra's message in our form: what must hold, what was given, what to do."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if isinstance(error, OverrideParseException):
        why = re.search(r"while evaluating '.*': (.*)", text)
        return unreadable(error.override, why[1] if why else "")
    if unknown := re.match(r"Could not override '(?P<key>[^']*)'", text):
        inside = re.search(r"full_key: (\S+)", str(error.__cause__))
        key = inside[1] if inside else unknown[1]
        return no_such_key(key, _words_that_set(unknown[1], given), given)
    if unknown := re.search(r"Could not find '(?P<group>[^']*)/(?P<option>[^'/]*)'", text):
        return no_such_option(unknown["group"], unknown["option"], text)
    if missing := re.match(r"Interpolation key '([^']+)' not found\s+full_key: (\S+)", text):
        return f"{missing[2]} refers to {missing[1]}, which is not set. Write +{missing[1]}=VALUE."
    if repeated := _sentence_on_repeats(text, given):
        return repeated
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = " ".join(line for line in lines if not line.startswith("See http"))
    if isinstance(error, YAMLError | UnicodeDecodeError):
        joined = f"A config file must be YAML in UTF-8; got {joined}. Correct it."
    return joined if not given or "got " in joined else f"{joined}; got {' '.join(given)}"


def _sentence_on_repeats(text: str, given: Sequence[str]) -> str:
    """A sentence on a key with several values where one is allowed; empty for another error."""
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^=]*)=", text):
        key = found[1].lstrip("+")
        return (
            f"{key} must have one value in a single run; got {_words_that_set(key, given)}. For a "
            "run at each value: sweeper -m; sweeper plan lists the runs."
        )
    found = re.search(r"(?:An item is already at '|Multiple values for )([\w/]+)", text)
    if not found:
        return ""
    key, typed = found[1], _words_that_set(found[1], given)
    if " " not in typed:
        return f"{key} must be set without +; got {typed}. Write {typed.lstrip('+')}."
    each = f"For a run with each: +{key}=A,B."
    remedy = "Give each a command of its own." if key == "experiment" else each
    return f"{key} must be chosen once; got {typed}. {remedy}"


def _words_that_set(key: str, given: Sequence[str]) -> str:
    """The words of a command that set a key; the key itself if there are none."""
    return " ".join(word for word in given if word.lstrip("+~").partition("=")[0] == key) or key


def check_group(override: Override) -> None:
    """ValueError for a list of options, all of which Hydra would use, or a group with a dot."""
    key, value = override.key_or_group, override.value()
    is_group = key in RunConfig.model_fields and (CONFIG_FOLDER / key).is_dir()
    if is_group and isinstance(value, list):
        rule, remedy = "one option", f"For a run with each, write {key}={','.join(map(str, value))}"
    elif (group := key.replace(".", "/")) in OF_PLUGINS and group != key:
        rule, remedy = "a group with its settings", f"Write {group}={value}"
    elif key == "optimizer.name" and (CONFIG_FOLDER / "optimizer" / f"{value}.yaml").is_file():
        rule, remedy = "the name of the class that is chosen", f"Write optimizer={value}"
    else:
        return
    msg = f"{key} must be {rule}; got {override.input_line}. {remedy}."
    raise ValueError(msg)


def unreadable(word: str, reason: str) -> str:
    """Why a word cannot be parsed in Hydra's grammar; `reason` may be empty."""
    key, equals, value = word.partition("=")
    reason = f" ({reason})" if reason else ""
    brackets = ("()", "[]", "{}")
    unclosed = "".join(end for sign, end in brackets if value.count(sign) > value.count(end))
    if not equals or not key.strip("+~") or key != key.strip():
        remedy = "Put no spaces around = or between values: batch=256,512."
    elif value.startswith("="):
        remedy = f"Write one =: {key}={value.lstrip('=')}."
    elif values := grid_values(value):
        remedy = f"Separate values by commas alone: {key}={values}."
    elif not value.strip() or value.strip().endswith(",") or value.startswith(","):
        remedy = f"Separate values by one comma each, without spaces: {key}=A,B."
    elif value.startswith("~/"):
        remedy = f"The shell replaces ~ at the start of a word only: {key}=$HOME{value[1:]}."
    elif unclosed:
        remedy = f"Close every bracket, and quote the word: '{word}{unclosed}'."
    else:
        quoted = value.strip("'\"").replace('"', '\\"')
        remedy = "Quote a value that has spaces or signs: " + shlex.quote(f'{key}="{quoted}"') + "."
    return f"An override must be KEY=VALUE in Hydra's syntax; got {word!r}{reason}. {remedy}"


def check_config_dir(folder: str, words: Iterable[str]) -> None:
    """Refuse a config folder that is missing, or that has a chosen config of the same name as ours.

    Raises:
        ValueError: in both cases. Hydra would only warn of the first, and take ours in the second.
    """
    if not Path(folder).is_dir():
        msg = f"--config-dir must be a folder; got {folder}, which is not one. Correct it."
        raise ValueError(msg)
    own = {path.relative_to(CONFIG_FOLDER).as_posix() for path in CONFIG_FOLDER.rglob("*.yaml")}
    for word in words:
        key, _, names = word.lstrip("+").partition("=")
        for name in names.split(","):
            chosen = f"{key.partition('@')[0]}/{name}.yaml"
            if chosen in own and (theirs := Path(folder, chosen)).is_file():
                msg = (
                    f"{word} must choose one config; got {theirs} and sweeper's own {chosen}. Give "
                    f"yours a second name, such as my_{name}: ln -s {name}.yaml "
                    f"{theirs.with_stem(f'my_{name}')}"
                )
                raise ValueError(msg)


def check_no_question(asked: str | None) -> None:
    """ValueError for a question that this sweep would not answer."""
    if asked:
        msg = (
            f"question must be null without hydra/sweeper=sequential; got question={asked!r}, "
            "which a grid does not answer. Write sweeper -m hydra/sweeper=sequential."
        )
        raise ValueError(msg)


#: Flags that show what Hydra composes, with the words to write after them.
_OF_HYDRA = {
    **dict.fromkeys(("--cfg", "-c"), " job"),
    **dict.fromkeys(("--info", "-i", "--hydra-help"), ""),
    "--resolve": " --cfg job",
    **dict.fromkeys(("--shell-completion", "-sc"), " install=bash"),
}


class CommandParser(argparse.ArgumentParser):
    """Refuses config keys given as flags, and Hydra's flags, and names the right command."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line; exit with 2."""
        words = message.partition("unrecognized arguments: ")[2].split()
        try:
            _check_hydras(words, self.prog.partition(" ")[2])
            check_dashes(words)
        except ValueError as error:
            sys.exit(refuse(error))
        super().error(message)


def _check_hydras(words: Sequence[str], command: str) -> None:
    """ValueError for a flag that shows what Hydra composes."""
    for flag in (word.partition("=")[0] for word in words):
        if flag in _OF_HYDRA:
            msg = (
                f"{flag} must be given to sweeper itself; got sweeper {command} {flag}. Write "
                f"sweeper {flag}{_OF_HYDRA[flag]}, then your overrides."
            )
            raise ValueError(msg)
