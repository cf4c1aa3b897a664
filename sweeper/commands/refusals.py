"""Why a command line is refused, and what to write instead; Hydra's messages in our form."""

import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sweeper import CONFIG_FOLDER
from sweeper.console.printing import HintingParser
from sweeper.planning.class_checks import check_names, find_arguments
from sweeper.spec.config import RunConfig, is_ours
from sweeper.spec.outcomes import BAD_INPUT
from sweeper.spec.sentences import did_you_mean, grid_values, printable
from sweeper.spec.trainer_settings import OWNED_BY_RUN

#: Errors raised by Hydra and by users' config files.
NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError, ValueError)
#: The middle of a longer line, where the value is, is left out [characters].
_LONGEST = 4000
#: Beginnings of the plain ValueErrors that Hydra raises.
_HYDRAS = (
    *("Config group override must", "No config source", "Expecting one subcommand"),
    *("The --resolve flag", "Only one of --run"),
)


def refuse(error: Exception, heading: str = "Nothing was started.") -> int:
    """Print why nothing was started; return the exit code."""
    words = sys.argv[1:]
    presets = [word for word in words if word.startswith(("+recipe=", "+experiment="))]
    is_ours = type(error) is ValueError and not str(error).startswith(_HYDRAS)
    lines = (str(error) if is_ours else explain_error(error, words)).splitlines()
    for number, line in enumerate(lines):
        if setting := re.match(r"(\S+) must be a setting of ", line):
            key = setting[1]
            is_typed = any(word.lstrip("+~").startswith(f"{key}=") for word in words)
            if presets and not is_typed:
                remedy = f"It is set by {' or '.join(presets)}: add ~{key} to remove it."
                lines[number] = f"{line} {remedy}"
        elif unknown := re.match(r"((\w+) must be a config key; got .*?\.) [A-Z].*$", line):
            lines[number] = f"{unknown[1]} {suggest_key(unknown[2], words)}"
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
        meant = suggest_meant_key(key)
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


def explain_error(error: Exception, given: Sequence[str] = ()) -> str:
    """Hydra's message in our form: what must hold, what was given, what to do."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if isinstance(error, OverrideParseException):
        why = re.search(r"while evaluating '.*': (.*)", text)
        return explain_unreadable(error.override, why[1] if why else "")
    if unknown := re.match(r"Could not override '(?P<key>[^']*)'", text):
        inside = re.search(r"full_key: (\S+)", str(error.__cause__))
        key = inside[1] if inside else unknown[1]
        return explain_no_key(key, _words_that_set(unknown[1], given), given)
    if unknown := re.search(r"Could not find '(?P<group>[^']*)/(?P<option>[^'/]*)'", text):
        return explain_no_option(unknown["group"], unknown["option"], text)
    if told := _explain_known(text, given) or _explain_repeats(text, given):
        return told
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = " ".join(line for line in lines if not line.startswith("See http"))
    if isinstance(error, YAMLError | UnicodeDecodeError):
        joined = f"A config file must be YAML in UTF-8; got {joined}. Correct it."
    if not given or "got " in joined:
        return joined
    why = joined.rstrip(".") or f"a key must be a name ({type(error).__name__})"
    return f"Hydra must be able to compose the config; got {' '.join(given)}: {why}. Correct it."


#: Beginnings of messages of Hydra and OmegaConf, with ours; {0} is what was typed, {key} the key
#: that they name.
_KNOWN = {
    r".*?Environment variable '([^']+)' not found": (
        "{key} refers to the environment's {1}, which is not set. Export {1}."
    ),
    r"Recursive interpolation detected": "{key} must not refer to itself. Write a value.",
    r"Unsupported interpolation type (\S+)": (
        "{key} must use resolvers that are registered; got ${{{1}:...}}. Name the module of your "
        "project that registers it: resolvers=[PACKAGE.MODULE]."
    ),
    r"Missing mandatory value": "{key} must be given. Write {key}=VALUE.",
    rf"Interpolation key '(trainer\.(?:{'|'.join(OWNED_BY_RUN)}))' not found": (
        "{key} refers to {1}, which the run decides. Write a value: {key}=VALUE."
    ),
    r"Interpolation key '([^']+)' not found": (
        "{key} refers to {1}, which is not set. Write +{1}=VALUE."
    ),
    r"Config group override (?:deletion value )?must|Error resolving interpolation ": (
        "a group must be chosen by the name of an option; got {0}. Write GROUP=OPTION."
    ),
    r"Could not delete from config. '([^']+)' does not exist": (
        "{1} must have a value to be removed with ~; got ~{1}, which is null or unknown already. "
        "Leave out ~{1}."
    ),
    r"In '([^']+)': Could not override '(\w+)@": (
        "{1} must have # @package _global_ in its first line, to choose another {2}; got none. Add "
        "it."
    ),
    r"(?s).*?Value (.+?)(?: \(\w+\))? is not a valid input for .*'RunMode'": (
        "hydra.mode must be RUN or MULTIRUN; got hydra.mode={1}. Remove it."
    ),
    r"(\S+) appears more than once in the final defaults list": (
        "{1} must be chosen once; got {0}. Write {1}=OPTION, without +."
    ),
}


def _explain_known(text: str, given: Sequence[str]) -> str:
    """What `_KNOWN` has for a message; empty if it is none of them."""
    key = found[1] if (found := re.search(r"full_key: (\S+)", text)) else "A value"
    for begin, sentence in _KNOWN.items():
        if found := re.match(begin, text):
            return sentence.format(" ".join(given), *found.groups(), key=key)
    return ""


def _explain_repeats(text: str, given: Sequence[str]) -> str:
    """A sentence on a key with several values but room for one; empty for another error."""
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^=]*)=", text):
        key = found[1].lstrip("+")
        return (
            f"{key} must have one value in a single run; got {_words_that_set(key, given)}. For a "
            "run at each value: sweeper -m; sweeper plan lists the runs."
        )
    found = re.search(r"(?:An item is already at '|Multiple values for )([\w/.]+)", text)
    if not found:
        return ""
    key, typed = found[1].rstrip("."), _words_that_set(found[1].rstrip("."), given)
    if key.startswith("trainer.") and (name := key.partition(".")[2]) in OWNED_BY_RUN:
        return f"{key} must be left to the run; got {typed}. Set {OWNED_BY_RUN[name]}."
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
    if key in PLUGIN_GROUPS and isinstance(value, list | dict):
        rule, remedy = "one option", f"Write {key}=OPTION"
    elif is_group and isinstance(value, list):
        rule, remedy = "one option", f"For a run with each, write {key}={','.join(map(str, value))}"
    elif (group := key.replace(".", "/")) in PLUGIN_GROUPS and group != key:
        rule, remedy = "a group with its settings", f"Write {group}={value}"
    elif key == "optimizer.name" and (CONFIG_FOLDER / "optimizer" / f"{value}.yaml").is_file():
        rule, remedy = "the name of the class that is chosen", f"Write optimizer={value}"
    else:
        return
    msg = f"{key} must be {rule}; got {override.input_line}. {remedy}."
    raise ValueError(msg)


def explain_unreadable(word: str, reason: str) -> str:
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
    remedy = remedy.replace("\n", "\\n")
    return f"An override must be KEY=VALUE in Hydra's syntax; got {word!r}{reason}. {remedy}"


def check_config_dir(folder: str) -> None:
    """ValueError for a config folder that is missing, of which Hydra would only warn."""
    if not folder or not Path(folder).is_dir():
        msg = f"--config-dir must be a folder; got {folder!r}, which is no folder. Correct it."
        raise ValueError(msg)


def check_no_question(asked: str | None) -> None:
    """ValueError for a question that this sweep would not answer."""
    if asked:
        msg = (
            f"question must be null without hydra/sweeper=sequential; got question={asked!r}, "
            "which a grid does not answer. Write sweeper -m hydra/sweeper=sequential."
        )
        raise ValueError(msg)


class CommandParser(HintingParser):
    """Refuses config keys given as flags."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line; exit with 2."""
        words = message.partition("unrecognized arguments: ")[2].split()
        try:
            check_dashes(words)
        except ValueError as error:
            sys.exit(refuse(error))
        super().error(message)


PLUGIN_GROUPS = ("hydra/launcher", "hydra/sweeper")
#: By a name that other tools use, our key.
_OUR_NAMES = {
    other: ours
    for ours, others in {
        "batch": ("batch_size", "bs", "global_batch", "train_batch_size"),
        "base_lr": ("lr", "learning_rate", "peak_lr", "max_lr"),
        "warmup": ("warmup_epochs", "warmup_steps", "num_warmup_steps"),
        "lr_rule": ("lr_scaling", "scaling", "rule"),
        "schedule": ("scheduler", "lr_scheduler", "lr_schedule"),
        "epochs": ("max_epochs", "num_epochs", "num_train_epochs"),
        "steps": ("max_steps", "num_steps", "train_steps", "total_steps"),
        "devices": ("gpus", "num_gpus", "world_size", "nproc_per_node"),
        "num_nodes": ("node", "nodes", "nnodes"),
        "micro_batch": ("micro_batch_size", "accumulate_grad_batches", "accumulation_steps"),
        "gradient_clip": ("gradient_clip_val", "clip_grad", "max_grad_norm"),
        "data": ("dataset", "datamodule"),
        "results": ("output", "output_dir", "out", "save_dir"),
        "hydra/launcher": ("launcher",),
        "hydra/sweeper": ("sweeper",),
        "hydra.launcher.jobs": ("jobs", "num_jobs", "n_jobs"),
        "sweeper plan, which starts nothing": ("dryrun", "dry_run"),
    }.items()
    for other in others
}
#: Groups whose class is usually the user's own.
_USER_GROUPS = ("module", "data", "model")
#: Groups without a default choice, which are added with +.
ADDED_GROUPS = ("cluster", "experiment", "recipe")


def check_key(override: Override, config: Any, targets: Mapping[str, str]) -> None:
    """ValueError for a key that a composed config does not have, and that is no argument there.

    `targets` has the classes that the command names, by key.
    """
    key, given = override.key_or_group, override.input_line or ""
    node, inside = config, ""  # the part of the key that exists, and the value there
    for word in key.split("."):
        if isinstance(node, dict) and word in node:
            node, inside = node[word], f"{inside}.{word}".lstrip(".")
            continue
        known = {str(name) for name in node} if isinstance(node, dict) else set[str]()
        target = targets.get(f"{inside}._target_") or (str(node.get("_target_")) if known else "")
        names, is_open = list[str](), True
        is_setting = inside.partition(".")[0] in _USER_GROUPS and key == f"{inside}.{word}"
        is_setting &= not word.startswith("_")  # which are Hydra's own
        if is_setting and not (inside == "module" and is_ours(target)):  # which the run calls
            names, is_open = find_arguments(target)
        if word in names or key == "data.num_train_examples":  # whatever the class, it is ours
            return
        known = sorted({*known, *names})
        is_renamed = key.rpartition(".")[2] in _OUR_NAMES
        like = "" if is_renamed else did_you_mean(word, known, f"{inside}." if inside else "")
        if inside in _USER_GROUPS and not is_ours(target):
            remedy = f"Its arguments: {', '.join(names) or 'none'}."
            if is_open:
                if "." in target:
                    check_names([(inside, target, None)])  # a wrong class has no arguments
                remedy = f"Write +{given}, if it is an argument of your class."
            remedy = f"{like} {remedy}".lstrip()
        elif found := like or _suggest_options(key) or suggest_meant_key(key):
            remedy = found
        elif known:
            remedy = f"Known keys{f' of {inside}' if inside else ''}: {', '.join(known)}."
        else:
            remedy = f"{inside} is empty here: give all of it, {inside}={{KEY:VALUE,...}}."
        is_users = not is_open and not is_ours(target)
        rule = f"an argument of {target}" if is_users else "a config key"
        msg = f"{key} must be {rule}; got {given}. {remedy}"
        raise ValueError(msg)


def explain_no_key(key: str, typed: str, given: Sequence[str]) -> str:
    """Why Hydra did not find a key that a command sets."""
    if any(word.startswith(f"{key.partition('.')[0]}._target_=") for word in given):
        remedy = f"Write +{typed}, if it is an argument of your class."
    elif key in ADDED_GROUPS and "=" in typed:
        remedy = f"Write +{typed}, which adds it."
    elif key == "callbacks" and "=" in typed:
        remedy = f"Write +callbacks@trainer.{typed.lstrip('+')}, which gives them to the Trainer."
    else:
        remedy = suggest_key(key, given)
    return f"{key} must be a config key; got {typed}. {remedy}"


def suggest_key(key: str, given: Sequence[str]) -> str:
    """What to write instead of a key that does not exist."""
    named = [word.partition("=")[2] for word in given if word.startswith("module._target_=")]
    if any(key in find_arguments(target)[0] for target in named if not is_ours(target)):
        return f"Did you mean module.{key}?"
    keys = re.findall(r"^(\w+):", (CONFIG_FOLDER / "config.yaml").read_text(), re.MULTILINE)
    groups = [path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()]
    known = [*keys, *(f"{'+' * (name in ADDED_GROUPS)}{name}" for name in groups), *PLUGIN_GROUPS]
    group, _, word = key.rpartition(".")
    like = did_you_mean(word, [name for name in keys if name == word] if group else known)
    what = "hydra" if key.startswith("hydra.") else "job"
    return (
        _suggest_options(key)
        or suggest_meant_key(key)
        or like
        or f"See them all with --cfg {what}."
    )


def explain_no_option(group: str, option: str, text: str) -> str:
    """Why Hydra did not find an option of a group; `text` is Hydra's message."""
    _, _, listed = text.partition("Available options in")
    known = [line.strip() for line in listed.splitlines()[1:]]
    known = [line for line in known if re.fullmatch(r"[\w.-]+", line)]
    like = did_you_mean(option, known, f"{group}=")
    if "." in option and group in _USER_GROUPS:
        like = f"For a class of your own: {group}._target_={option}."
    elif group == "model":
        like += f" Of torchvision: model=torchvision model.name={option}."
    elif option.lower().replace("_", "") == "imagefolder":
        like = "Did you mean data=images?"
    return f"{group} must be one of {', '.join(known)}; got {group}={option}. {like}".strip()


def suggest_meant_key(key: str) -> str:
    """A hint for a word that other tools use, or that is a key of a group; empty for any other."""
    group, _, word = key.rpartition(".")
    if word in _OUR_NAMES:
        return f"Did you mean {_OUR_NAMES[word]}?"
    settings = _settings()
    if group:
        in_group = [s.rpartition(".")[2] for s in settings if s.startswith(f"{group}.")]
        return did_you_mean(word, in_group, f"{group}.")
    having = [name for name in settings if name.endswith(f".{word}")]
    return f"Did you mean {having[0]}?" if having else ""


def _suggest_options(key: str) -> str:
    """The options of a group that have a key which the chosen option lacks; empty if none."""
    group, having = key.partition(".")[0], _settings().get(key)
    if not having:
        return ""
    return f"The {group} that is chosen has none; choose {group}={' or '.join(having)}."


def _settings() -> dict[str, list[str]]:
    """The keys of groups, with the options that have each."""
    found = defaultdict[str, list[str]](list)
    for path in sorted(CONFIG_FOLDER.glob("*/*.yaml")):
        text = path.read_text()
        if (group := path.parent.name) not in ADDED_GROUPS and "@package _global_" not in text:
            for name in re.findall(r"^([^\W_]\w*):", text, re.MULTILINE):
                if name not in {"name", "defaults"}:
                    found[f"{group}.{name}"].append(path.stem)
    return found
