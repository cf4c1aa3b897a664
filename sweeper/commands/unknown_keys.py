"""Suggestions for a key or option that does not exist."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from sweeper import CONFIG_FOLDER
from sweeper.spec.config import is_ours
from sweeper.spec.sentences import did_you_mean

OF_PLUGINS = ("hydra/launcher", "hydra/sweeper")
#: Names that other tools use for our keys.
_OTHER_NAMES = {
    "batch": ("batch_size", "bs", "global_batch", "train_batch_size"),
    "base_lr": ("lr", "learning_rate", "peak_lr", "max_lr"),
    "warmup": ("warmup_epochs", "warmup_steps", "num_warmup_steps"),
    "lr_rule": ("lr_scaling", "scaling", "rule"),
    "schedule": ("scheduler", "lr_scheduler", "lr_schedule"),
    "epochs": ("max_epochs", "num_epochs", "num_train_epochs"),
    "devices": ("gpus", "num_gpus", "world_size", "nproc_per_node"),
    "num_nodes": ("node", "nodes", "nnodes"),
    "micro_batch": ("micro_batch_size", "accumulate_grad_batches", "accumulation_steps"),
    "gradient_clip": ("gradient_clip_val", "clip_grad", "max_grad_norm"),
    "data": ("dataset", "datamodule"),
    "results": ("output", "output_dir", "out", "save_dir"),
    "hydra/launcher": ("launcher",),
    "hydra/sweeper": ("sweeper",),
    "hydra.launcher.jobs": ("jobs", "num_jobs", "n_jobs"),
}
#: Groups whose class is usually the user's own.
_OWN = ("module", "data")
#: Groups without a default choice, which are added with +.
_ADDED = ("cluster", "experiment", "recipe")


def check_key(override: Override, config: Any) -> None:
    """ValueError for a key that a composed config does not have."""
    key, given = override.key_or_group, override.input_line or ""
    node, inside = config, ""  # the part of the key that exists, and the value there
    for word in key.split("."):
        if isinstance(node, dict) and word in node:
            node, inside = node[word], f"{inside}.{word}".lstrip(".")
            continue
        known = sorted(str(name) for name in node) if isinstance(node, dict) else []
        is_renamed = _other_name(key.rpartition(".")[2])
        like = "" if is_renamed else did_you_mean(word, known, f"{inside}." if inside else "")
        if inside in _OWN and not is_ours(str(node["_target_"])):
            remedy = _add_argument(given)
        elif found := like or _options_that_have(key) or meant_by(key):
            remedy = found
        elif known:
            remedy = f"Known keys{f' of {inside}' if inside else ''}: {', '.join(known)}."
        else:
            remedy = f"{inside} is empty here: give all of it, {inside}={{KEY:VALUE,...}}."
        msg = f"{key} must be a config key; got {given}. {remedy}"
        raise ValueError(msg)


def no_such_key(key: str, typed: str, given: Sequence[str]) -> str:
    """Why Hydra did not find a key that a command sets."""
    if any(word.startswith(f"{key.partition('.')[0]}._target_=") for word in given):
        remedy = _add_argument(typed)
    elif key in _ADDED and "=" in typed:
        remedy = f"Write +{typed}, which adds it."
    elif key == "callbacks" and "=" in typed:
        remedy = f"Write +callbacks@trainer.{typed.lstrip('+')}, which gives them to the Trainer."
    else:
        remedy = hint(key)
    return f"{key} must be a config key; got {typed}. {remedy}"


def _add_argument(given: str) -> str:
    return f"Write +{given}, if it is an argument of your class."


def hint(key: str) -> str:
    """What to write instead of a key that does not exist."""
    keys = re.findall(r"^(\w+):", (CONFIG_FOLDER / "config.yaml").read_text(), re.MULTILINE)
    groups = [path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()]
    known = [*keys, *(f"{'+' * (name in _ADDED)}{name}" for name in groups), *OF_PLUGINS]
    group, _, word = key.rpartition(".")
    like = did_you_mean(word, [name for name in keys if name == word] if group else known)
    what = "hydra" if key.startswith("hydra.") else "job"
    return _options_that_have(key) or meant_by(key) or like or f"See them all with --cfg {what}."


def no_such_option(group: str, option: str, text: str) -> str:
    """Why Hydra did not find an option of a group; `text` is Hydra's message."""
    _, _, listed = text.partition("Available options in")
    known = [line.strip() for line in listed.splitlines()[1:]]
    known = [line for line in known if re.fullmatch(r"[\w.-]+", line)]
    like = did_you_mean(option, known, f"{group}=")
    return f"{group} must be one of {', '.join(known)}; got {group}={option}. {like}".strip()


def meant_by(key: str) -> str:
    """A hint for a word that other tools use, or that is a key of a group; empty for any other."""
    group, _, word = key.rpartition(".")
    if found := _other_name(word):
        return f"Did you mean {found}?"
    settings = _settings()
    if group:
        in_group = [s.rpartition(".")[2] for s in settings if s.startswith(f"{group}.")]
        return did_you_mean(word, in_group, f"{group}.")
    having = [name for name in settings if name.endswith(f".{word}")]
    return f"Did you mean {having[0]}?" if having else ""


def _options_that_have(key: str) -> str:
    """The options of a group that have a key which the chosen one lacks; empty if none has it."""
    group, having = key.partition(".")[0], _settings().get(key)
    if not having:
        return ""
    return f"The {group} that is chosen has none; choose {group}={' or '.join(having)}."


def _settings() -> dict[str, list[str]]:
    """The keys of groups, with the options that have each."""
    found = defaultdict[str, list[str]](list)
    for path in sorted(CONFIG_FOLDER.glob("*/*.yaml")):
        if (group := path.parent.name) not in _ADDED:
            for name in re.findall(r"^([^\W_]\w*):", path.read_text(), re.MULTILINE):
                if name not in {"name", "defaults"}:
                    found[f"{group}.{name}"].append(path.stem)
    return found


def _other_name(word: str) -> str:
    return next((ours for ours, others in _OTHER_NAMES.items() if word in others), "")
