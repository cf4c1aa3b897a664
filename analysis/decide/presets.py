"""The files in conf/ as settings: what a command's groups and presets stand for, without Hydra."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import yaml

from sweeper import CONFIG_FOLDER

Config = dict[str, Any]

#: Keys of a file that are not settings.
_ABOUT = ("defaults", "hydra")
#: The loader in C, if the package has it, takes a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Composed:
    """What a command without values of its own would train.

    Attributes:
        settings: every key; those of a group are in a mapping.
        choices: the file of each group.
        swept: keys that a preset gives several values, unless the command gives them others.
    """

    settings: Config
    choices: Mapping[str, str | None]
    swept: frozenset[str]


@cache
def compose(module: str, presets: tuple[tuple[str, str], ...] = ()) -> Composed:
    """The settings of conf/config.yaml with a choice of the module, and presets.

    Args:
        module: file of the group `module`.
        presets: group and file of each, in the order of the command line.
    """
    main, own = _read("config"), _read(f"module/{module}")
    layers = [main, own if "module" in own else {"module": own}]
    layers += [_read("/".join(preset)) for preset in presets]
    choices = dict(choice for layer in layers for choice in _choices(layer))
    settings: Config = {
        group: None if choice is None else group_settings(group, choice)
        for group, choice in choices.items()
    }
    swept: set[str] = set()
    for layer in layers:
        swept |= {*layer.get("hydra", {}).get("sweeper", {}).get("params", {})}
        settings = _merge(settings, {k: v for k, v in layer.items() if k not in _ABOUT})
    return Composed(settings, {**choices, "module": module}, frozenset(swept))


def group_files(group: str) -> list[str]:
    """The choices of a group."""
    return sorted(path.stem for path in (CONFIG_FOLDER / group).glob("*.yaml"))


def group_settings(group: str, choice: str) -> Config:
    """What a file of a group sets in it, after the files that it builds on."""
    own = _read(f"{group}/{choice}")
    settings: Config = {}
    for name in own.get("defaults", ()):
        if isinstance(name, str) and name != "_self_":
            settings |= group_settings(group, name)
    own = own.get(group, own)  # of a file that also sets keys outside its group
    return settings | {key: value for key, value in own.items() if key not in _ABOUT}


@cache
def preset_values(key: str) -> frozenset[Any]:
    """The values of a key without a preset, with one model or another."""
    layers = [_read("config"), *(_read(f"model/{name}") for name in group_files("model"))]
    return frozenset(layer[key] for layer in layers if key in layer)


@cache
def _read(name: str) -> Config:
    text = (CONFIG_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, _LOADER)


def _choices(layer: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The groups that a layer chooses a file of; the module is a layer of its own."""
    for default in layer.get("defaults", ()):
        for group, choice in default.items() if isinstance(default, dict) else ():
            name = group.removeprefix("override /")
            if name != "module" and "hydra" not in name:
                yield name, choice


def _merge(first: Mapping[str, Any], then: Mapping[str, Any]) -> Config:
    both = {**first}
    for key, value in then.items():
        was = both.get(key)
        is_part = isinstance(value, dict) and isinstance(was, dict)
        both[key] = _merge(cast("Config", was), cast("Config", value)) if is_part else value
    return both
