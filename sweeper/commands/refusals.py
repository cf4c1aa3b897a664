"""Why a command line is refused, in sentences; Hydra's messages in our form."""

import re
import sys
from collections.abc import Sequence

from hydra.errors import OverrideParseException

from sweeper import CONFIG_FOLDER
from sweeper.spec.exit_codes import BAD_INPUT
from sweeper.spec.sentences import did_you_mean, printable

#: A line that is longer than this loses its middle, where the value is [characters].
_LONGEST = 1000
#: How plain ValueErrors of Hydra begin.
_HYDRAS = ("Config group override must", "No config source", "Expecting one subcommand")


def refuse(error: Exception, heading: str = "Nothing was started.") -> int:
    """Print why nothing was started; return the exit code."""
    is_ours = type(error) is ValueError and not str(error).startswith(_HYDRAS)
    lines = str(error) if is_ours else sentence(error, sys.argv[1:])
    sys.stderr.write("\n".join([heading, *map(fitted, lines.splitlines()), ""]))
    return BAD_INPUT


def fitted(line: str) -> str:
    """A line of a refusal as terminals and readers can take it."""
    line = printable(line)
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}"


def sentence(error: Exception, given: Sequence[str] = ()) -> str:
    """Hydra's message in our form: what must hold, what was given, what to do."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if isinstance(error, OverrideParseException):
        why = re.search(r"while evaluating '.*': (.*)", text)
        return unreadable(error.override, why[1] if why else "")
    if unknown_key := re.match(r"Could not override '(?P<key>[^']*)'", text):
        return _unknown_to_hydra(unknown_key["key"], given)
    if unknown_option := re.search(r"Could not find '(?P<group>[^']*)/(?P<option>[^'/]*)'", text):
        return _unknown_option(unknown_option["group"], unknown_option["option"], text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = " ".join(line for line in lines if not line.startswith("See http"))
    return joined if not given or "got " in joined else f"{joined}; got {' '.join(given)}"


def unreadable(word: str, reason: str) -> str:
    """Why a word cannot be read in Hydra's grammar; the reason is empty if it is the grammar."""
    key, equals, value = word.partition("=")
    reason = f" ({reason})" if reason else ""
    if not equals or not key.strip("+~"):
        remedy = "Put no spaces around the =."
    elif not value.strip() or value.strip().endswith(",") or value.startswith(","):
        remedy = f"Separate values by one comma each: {key}=A,B."
    else:
        quoted = value.replace("'", "").replace('"', "")
        remedy = f"""Quote a value that has spaces or signs: '{key}="{quoted}"'."""
    return f"An override must be KEY=VALUE in Hydra's syntax; got {word!r}{reason}. {remedy}"


def unknown_key(key: str, given: str, *, inside: str, known: Sequence[str]) -> str:
    """Why an override cannot be followed.

    `inside` is the part of the key that exists, empty if none does, and `known` the keys in
    there.
    """
    prefix = f"{inside}." if inside else ""
    listed = f"Known keys{f' of {inside}' if inside else ''}: {', '.join(sorted(known))}."
    hint = did_you_mean(key.removeprefix(prefix).split(".")[0], known, prefix)
    return f"{key} must be a config key; got {given}. {_meant(key) or hint or listed}"


#: What others call a key of ours.
_OTHER_NAMES = {
    "batch": ("batch_size", "bs", "global_batch", "train_batch_size"),
    "base_lr": ("lr", "learning_rate", "peak_lr", "max_lr"),
    "warmup": ("warmup_epochs", "warmup_steps", "num_warmup_steps"),
    "lr_rule": ("lr_scaling", "scaling", "rule"),
    "schedule": ("scheduler", "lr_scheduler", "lr_schedule"),
    "epochs": ("max_epochs", "num_epochs", "num_train_epochs"),
    "devices": ("gpus", "num_gpus", "world_size", "nproc_per_node"),
    "num_nodes": ("nodes", "nnodes"),
    "micro_batch": ("micro_batch_size", "accumulate_grad_batches", "accumulation_steps"),
    "gradient_clip": ("gradient_clip_val", "clip_grad", "max_grad_norm"),
    "data": ("dataset", "datamodule"),
    "results": ("output_dir", "out", "save_dir"),
}
#: Groups of which nothing is chosen until one is added.
_ADDED = ("cluster", "experiment", "recipe")


def _meant(key: str) -> str:
    """A hint for a word that others use, or that is a key of a group; empty for any other."""
    word = key.rpartition(".")[2]
    if key in _ADDED:
        return f"Write +{key}=OPTION, which adds it."
    found = [ours for ours, others in _OTHER_NAMES.items() if word in others]
    if not found and word == key:
        files = sorted(CONFIG_FOLDER.glob("*/*.yaml"))
        texts = {path: path.read_text() for path in files if path.parent.name not in _ADDED}
        having = [
            path for path, text in texts.items() if re.search(rf"^{re.escape(word)}:", text, re.M)
        ]
        found = [f"{path.parent.name}.{word}" for path in having]
    return f"Did you mean {found[0]}?" if found else ""


def _unknown_to_hydra(key: str, given: Sequence[str]) -> str:
    typed = next((word for word in given if word.startswith(f"{key}=")), key)
    keys = re.findall(r"^(\w+):", (CONFIG_FOLDER / "config.yaml").read_text(), re.MULTILINE)
    groups = [path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()]
    hint = _meant(key) or ("" if "." in key else did_you_mean(key, [*keys, *groups]))
    return f"{key} must be a config key; got {typed}. {hint or 'See them all with --cfg job.'}"


def _unknown_option(group: str, option: str, text: str) -> str:
    _, _, listed = text.partition("Available options in")
    known = [line.strip() for line in listed.splitlines()[1:]]
    known = [line for line in known if re.fullmatch(r"[\w.-]+", line)]
    hint = did_you_mean(option, known, f"{group}=")
    return f"{group} must be one of {', '.join(known)}; got {group}={option}. {hint}".strip()
