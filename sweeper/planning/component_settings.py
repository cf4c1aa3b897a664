"""Refuses settings of data, models and optimizers that certainly fail; nothing is imported."""

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from sweeper import CONFIG_FOLDER
from sweeper.spec.config import Component, is_ours
from sweeper.spec.sentences import as_typed, checked, did_you_mean
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

    The defaults here only mark a setting as one that not every class has.
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
        mistakes |= dict.fromkeys(_wrong_names(key, group))
        if is_ours(group.target) and key in _OurGroups.model_fields:
            try:
                checked(_OurGroups, {key: group.settings})
            except ValueError as refused:
                mistakes |= dict.fromkeys(str(refused).splitlines())
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _wrong_names(key: str, group: Component) -> list[str]:
    """A sentence for each setting that a class lacks, or that it must be given.

    Library classes have more settings than conf/ gives them. So theirs are refused only if another
    option of the group has them, as where a recipe sets the momentum of another optimizer.
    """
    options = _options(key)
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
            got = f"got {key}.{name}={as_typed(value)}"
            found.append(f"{key}.{name} must be a setting of {what}; {got}. {hint}")
    return found


@cache
def _options(key: str) -> dict[str, list[str]]:
    """By target, the settings that the options of a group in conf/ give it."""
    found: dict[str, list[str]] = {}
    for path in sorted((CONFIG_FOLDER / key).glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        group = content.get(key, content)  # an option may also set keys outside its group
        no_settings = {"_target_", "about", "defaults", "name" if key == "optimizer" else ""}
        names = [name for name in group if name not in no_settings]
        found[group["_target_"]] = list(dict.fromkeys([*found.get(group["_target_"], []), *names]))
    return found
