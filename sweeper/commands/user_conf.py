"""A user's config folder, such as that of a project with Hydra: its groups in a sweep's words.

Its options come before ours of the same name. A group that our config lacks may be chosen as in the
user's own application, and is left out of a run's config once references into it are resolved.
"""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from sweeper.console.printing import note
from sweeper.planning.class_checks import find_definition
from sweeper.spec.config import OUTPUT_FOLDER, OWN_OPTIMIZER, RunConfig, is_ours
from sweeper.spec.sentences import format_value
from sweeper.spec.trainer_settings import OWNED_BY_RUN, remedy_of_owned
from sweeper.upstream.hydras import ConfigLoader, answer_hydra

#: Groups whose options are a class and its settings: a user's own class has other settings.
CLASS_GROUPS = ("module", "data", "model")
_LANGUAGE_MODELS = ("lightning_modules.models.gpt.GPT", "lightning_modules.models.lstm.LSTM")
#: What a project's config may refer to and the run decides, and our key for it.
_REFERRED = {
    "data.batch_size": "batch",
    "trainer.accelerator": "accelerator",
    "trainer.devices": "devices",
    "trainer.gradient_clip_val": "gradient_clip",
    "trainer.max_epochs": "epochs",
    "trainer.num_nodes": "num_nodes",
    "trainer.precision": "precision",
}
#: The file that marks the root of a project made from lightning-hydra-template.
_ROOT_MARK = ".project-root"


def use_folder(folder: str, words: Sequence[str]) -> list[str]:
    """The words of a command, after those that make the groups of a user's folder known.

    A group's only option is chosen if it is called `default`.
    """
    for parent in Path(folder).resolve().parents:
        if (parent / _ROOT_MARK).exists():  # as the template's own start does
            os.environ.setdefault("PROJECT_ROOT", str(parent))
            break
    added = {word[1:].partition("=")[0] for word in words if word.startswith("+")}
    found = [
        f"+{group}={'default' if [path.stem for path in paths] == ['default'] else '[]'}"
        for group, paths in _groups(folder).items()
        if group not in added
    ]
    left_out = [word for word in words if re.match(r"\+?hydra=", word)]
    for word in left_out:
        note(f"Left out: {word}, as the sweep has settings of Hydra of its own.")
    return [*found, *(word for word in words if word not in left_out)]


@cache
def _groups(folder: str) -> Mapping[str, Sequence[Path]]:
    """The groups of a folder that our config lacks, with their files; those that set all last."""
    groups = defaultdict[str, list[Path]](list)
    for path in sorted(Path(folder).glob("*/*.yaml")):
        groups[path.parent.name].append(path)

    def sets_all(group: str) -> bool:
        return any(b"@package _global_" in path.read_bytes() for path in groups[group])

    known = {*RunConfig.model_fields, "hydra", "cluster", "recipe"} - {"trainer"}
    lacking = [group for group in groups if group not in known and group.isidentifier()]
    return {group: groups[group] for group in sorted(lacking, key=sets_all)}


def user_choices(loader: ConfigLoader, composed: DictConfig, words: Sequence[str]) -> list[str]:
    """The choices that classes of the user's need, where a config has them without a word's choice.

    A class would otherwise get the settings of our default, and a module its optimizer and
    schedule.
    """
    typed = {word.partition("=")[0] for word in words}

    def is_default(group: str) -> bool:
        path = f"{group}/{composed.hydra.runtime.choices.get(group)}"
        provider = (s.provider for s in loader.get_sources() if s.is_config(path))
        return group not in typed and next(provider, "main") == "main"

    groups: Any = OmegaConf.to_container(composed)
    targets = {
        group: str(found.get("_target_", ""))
        for group in CLASS_GROUPS
        if isinstance(found := groups.get(group), dict)
    }
    own = [group for group, target in targets.items() if target and not is_ours(target)]
    found = [f"{group}=own" for group in own if is_default(group)]
    if targets.get("model") in _LANGUAGE_MODELS and is_default("module"):
        found.append("module=language_model")
    is_module = "module" not in own and is_default("module")
    if is_module and "model" in own and _is_lightning_module(targets["model"]):
        found.append("module=model")
    return found


def _is_lightning_module(target: str) -> bool:
    """Whether a class is a LightningModule, as the sources say; nothing is imported."""
    if target.rpartition(".")[2] == "LightningModule":
        return True
    _, bases = find_definition(target) or (None, ())
    return any(map(_is_lightning_module, bases))


def task_words(of_hydra: Any) -> list[str]:
    """The words that Hydra composed a config with, as they were typed."""
    found: Any = OmegaConf.to_container(of_hydra.overrides.task)
    return [*map(str, found)]


def refer_to_run(composed: DictConfig) -> None:
    """Let a composed config refer to what the run decides, and to Hydra's own settings.

    `leave_out` removes what is added.
    """
    answer_hydra(
        lambda key: (
            OUTPUT_FOLDER
            if key == "runtime.output_dir"
            else OmegaConf.select(composed, f"hydra.{key}")
        )
    )
    text = OmegaConf.to_yaml(composed)
    words = task_words(composed.hydra) if "hydra" in composed else ()
    typed = {word.lstrip("+").partition("=")[0] for word in words}
    with open_dict(composed):
        named = composed.get("callbacks")
        if isinstance(named, DictConfig) and isinstance(composed.get("trainer"), DictConfig):
            made = ((name, "_target_" in g) for name, g in named.items() if OmegaConf.is_dict(g))
            are_made = [name for name, is_made in made if is_made]
            given = list(composed.trainer.get("callbacks") or ())
            composed.trainer.callbacks = [f"${{callbacks.{name}}}" for name in are_made] + given
        for key, ours in _REFERRED.items():
            group, _, name = key.partition(".")
            node = composed.get(group)
            is_given = isinstance(node, DictConfig) and name in node
            is_ours = is_given if group == "data" else name in OWNED_BY_RUN or not is_given
            if is_ours and key not in typed and f"${{{key}}}" in text:
                OmegaConf.update(composed, key, f"${{{ours}}}", force_add=True)


def left_out_groups(loader: ConfigLoader) -> Collection[str] | None:
    """The groups of the user's folder that only other applications read; None without a folder."""
    folders = [source.path for source in loader.get_sources() if source.provider == "own"]
    return _groups(folders[0]).keys() - {"trainer"} if folders else None


def leave_out(
    config: Mapping[str, Any], groups: Collection[str] | None, words: Sequence[str]
) -> dict[str, Any]:
    """A point's config without what only the user's own application reads, which is said once.

    Args:
        config: resolved.
        groups: of the user's folder that are left out, if there is one.
        words: of the point; what they set stays, to be refused.
    """
    kept = {key: value for key, value in config.items() if key not in (groups or ())}
    if isinstance(kept.get("tags"), list):
        kept["tags"] = ",".join(map(str, kept["tags"]))
    _check_one_logger(kept.get("logger"))
    optimizer = kept.get("optimizer")
    if isinstance(optimizer, Mapping) and optimizer.get("_partial_"):  # the module completes it
        kept["optimizer"] = {"name": "module", "_target_": OWN_OPTIMIZER}
    trainer = kept.get("trainer")
    if isinstance(trainer, Mapping) and trainer:
        typed = " ".join(word for word in words if word.lstrip("+").startswith("trainer"))
        ours = {k for k, v in trainer.items() if _is_value_of_run(k, v, kept)}
        theirs = OWNED_BY_RUN.keys() if "_target_" in trainer else set[str]()
        left = {k: v for k, v in trainer.items() if k in ours | theirs and k not in typed}
        kept["trainer"] = {k: v for k, v in trainer.items() if k not in {*left, "_target_"}}
        unsaid = {*ours, "default_root_dir"}
        if told := [_left_to_run(k, v) for k, v in left.items() if k not in unsaid]:
            _tell(f"Left out of trainer, as the run decides it: {', '.join(told)}.")
    return kept


def _is_value_of_run(key: str, value: Any, config: Mapping[str, Any]) -> bool:
    ours = _REFERRED.get(f"trainer.{key}")
    return ours is not None and value == config[ours]


def _check_one_logger(given: Any) -> None:
    """ValueError for several loggers by name, as of a project's group `many_loggers`."""
    groups = given.items() if isinstance(given, Mapping) else ()
    named = [str(k) for k, v in groups if isinstance(v, Mapping) and v.get("_target_")]
    if len(named) > 1:
        names = ", ".join(named)
        msg = f"logger must be one logger; got {names}. Choose one of them: logger={named[0]}."
        raise ValueError(msg)


def _left_to_run(key: str, value: Any) -> str:
    return f"{key}={format_value(value)} ({remedy_of_owned(key)})"


@cache
def _tell(text: str) -> None:
    note(text)
