"""Refuses classes, models and settings that certainly fail; reads sources, imports nothing."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from sweeper import CONFIG_FOLDER
from sweeper.spec.config import Component, is_ours
from sweeper.spec.sentences import did_you_mean, format_value, read_model
from sweeper.spec.values import (
    Count,
    Index,
    NotNegative,
    Number,
    Positive,
    Rule,
    Settings,
    Switch,
    Text,
)

_Counts = Annotated[
    tuple[Count, ...],
    Field(strict=False, min_length=1),  # so that a list is accepted as a tuple
    Rule("a list of whole numbers, 1 or more"),
]
_Numbers = Annotated[
    tuple[Number, ...], Field(strict=False, min_length=1), Rule("a list of numbers")
]


_OPTIONAL = {"lightning_modules.data.small_images.SmallImages": ["drawn_from"]}  # not in conf/


class _OurSettings(Settings, extra="allow"):
    """The settings of our data sets and models; a name means the same in each that has it.

    The defaults here only mark a setting that not every class has.
    """

    blocks: Count = 1
    channels: _Counts = (1,)
    decay: Number = 1
    depth: Count = 1
    distinct: Count = 1
    download: Switch = False
    drawn_from: Count | None = None
    flip: Switch = False
    head_std: NotNegative | None = None
    heads: Count = 1
    hidden: Count = 1
    length: Count = 1
    mean: _Numbers = (0,)
    noise_scale: Positive = 1
    num_classes: Count = 1
    num_train_examples: Index = 1
    num_val_examples: Index = 1
    num_workers: Index | Literal["auto"] = 0
    padding: Index = 0
    resize: Count = 1
    root: Text = ""
    settings: Annotated[dict[str, Any], Rule("a group")] = Field(default_factory=dict)
    shape: _Counts = (1,)
    size: Count = 1
    source: Text = ""
    std: _Numbers = (1,)
    stem: Literal["auto", "imagenet", "small"] = "auto"
    stem_stride: Count = 1
    validation_fold: Index = 0
    width: Count = 1


class _OurGroups(Settings):
    data: _OurSettings | None = None
    model: _OurSettings | None = None


def check_settings(groups: Iterable[tuple[str, Component]]) -> None:
    """Refuse values that our classes cannot have, and settings of another option of a group.

    Args:
        groups: key and component of data, models and optimizers.

    Raises:
        ValueError: with a line of key, value and remedy for each.
    """
    mistakes: dict[str, None] = {}  # a set in order
    for key, group in groups:
        mistakes |= dict.fromkeys(_wrong_settings(key, group))
        if is_ours(group.target) and key in _OurGroups.model_fields:
            try:
                read_model(_OurGroups, {key: group.settings})
            except ValueError as refused:
                mistakes |= dict.fromkeys(str(refused).splitlines())
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _wrong_settings(key: str, group: Component) -> list[str]:
    """A sentence for each setting that a class lacks, or that it must be given.

    Library classes have more settings than conf/ gives them. So theirs are refused only if another
    option of the group has them, as where a recipe sets the momentum of another optimizer.
    """
    options = _option_settings(key)
    if group.target not in options:
        return []
    known = options[group.target]
    allowed = [*known, *_OPTIONAL.get(group.target, [])]
    others = set[str]().union(*options.values()) - {*known}
    is_complete = is_ours(group.target) and key in _OurGroups.model_fields
    what = group.target.rpartition(".")[2]
    what = what if is_ours(group.target) else f"{key}._target_={group.target}"
    found = [
        f"{key}.{name} must be given to {what}. Write {key}.{name}=VALUE."
        for name in known
        if is_complete and name not in group.settings
    ]
    for name, value in group.settings.items():
        if name in others or (is_complete and name not in allowed):
            hint = did_you_mean(name, allowed, f"{key}.") or f"Its settings: {', '.join(allowed)}."
            got = f"got {key}.{name}={format_value(value)}"
            found.append(f"{key}.{name} must be a setting of {what}; {got}. {hint}")
    return found


@cache
def _option_settings(key: str) -> dict[str, list[str]]:
    """By target, the settings that the options of a group in conf/ give it."""
    found: dict[str, list[str]] = {}
    for path in sorted((CONFIG_FOLDER / key).glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        group = content.get(key, content)  # an option may also set keys outside its group
        no_settings = {"_target_", "about", "defaults", "name" if key == "optimizer" else ""}
        names = [name for name in group if name not in no_settings]
        found[group["_target_"]] = list(dict.fromkeys([*found.get(group["_target_"], []), *names]))
    return found


_LIBRARIES = {
    "lightning_modules.models.library.timm_model": "timm",
    "lightning_modules.models.library.torchvision_model": "torchvision",
}

_LONGEST_NAME = 255  # of a file, on any file system


def check_names(named: Iterable[tuple[str, str, str | None]]) -> None:
    """Refuse classes and models that certainly do not exist.

    Args:
        named: for each group, its key, its `_target_` and its `name`.

    Raises:
        ValueError: with a line of key, name and remedy for each.
    """
    mistakes = {_name_mistake(key, target, str(name)) for key, target, name in {*named}} - {""}
    if mistakes:
        raise ValueError("\n".join(sorted(mistakes)))


def _name_mistake(key: str, target: str, name: str) -> str:
    if not _may_exist(target):
        return (
            f"{key}._target_ must name something that can be imported; got "
            f"{key}._target_={target!r}, which does not exist. Correct it, install its package or "
            "put its folder on PYTHONPATH."
        )
    if target not in _LIBRARIES:
        return ""
    library = _LIBRARIES[target]
    words, models = _library_models(library)
    if not words:
        return f"model={library} needs the package {library}. Install it: pip install {library}."
    if name.partition(".")[0] in words:  # after the dot: which pretrained weights
        return ""
    mistake = f"model.name must be a model of {library}; got model.name={name!r}."
    return f"{mistake} {did_you_mean(name, models, 'model.name=')}".rstrip()


@cache
def _library_models(library: str) -> tuple[frozenset[str], list[str]]:
    """All words in the sources of a library's models, and the names registered as models."""
    found = find_spec(library)
    folders = found.submodule_search_locations if found else None
    files = Path(folders[0], "models").rglob("*.py") if folders else ()
    text = "\n".join(file.read_text(errors="replace") for file in files)
    models = re.findall(r"@register_model.*?\ndef (\w+)\(", text, re.DOTALL)
    return frozenset(re.findall(r"\w+", text)), sorted(models)


def _may_exist(dotted: str) -> bool:
    """Whether a dotted path may name something; false only if no source can define it."""
    top, *rest = dotted.split(".")
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None or not rest or len(max(rest, key=len)) > _LONGEST_NAME:
        return False
    file = Path(found.origin) if found.origin and found.origin.endswith(".py") else None
    folder = Path(next(iter(found.submodule_search_locations or ()), "/dev/null"))
    for name in rest:
        if (folder / name).is_dir():
            folder, file = folder / name, folder / name / "__init__.py"
        elif (folder / f"{name}.py").is_file():
            folder, file = Path("/dev/null"), folder / f"{name}.py"
        else:
            if file is None or not file.is_file():
                return True
            # A module may define a name that its text has, or any if it does so dynamically.
            may_define = rf"\b{re.escape(name)}\b|import \*|__getattr__|globals\(\)"
            return bool(re.search(may_define, file.read_text(errors="replace")))
    return True
