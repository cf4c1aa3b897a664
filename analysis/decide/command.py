"""From the settings of runs to the commands that train them: every difference from conf/, named.

The files of conf/ are read without Hydra, whose composition takes a second for all choices.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from math import prod
from typing import Any

import yaml

from sweeper import CONFIG_FOLDER
from sweeper.spec.config import is_ours

Config = dict[str, Any]

#: Keys whose values a command lists, in the order in which they are written.
LISTED = ("base_lr", "batch", "warmup", "seed")

#: Keys about a command or its cluster, or filled in.
_LEFT_OUT = frozenset(
    {
        "budget", "code", "data_order", "energy_price", "guarantees", "hardware", "keep_going",
        "n_trials", "order", "predicted", "predicted_memory_gib", "price", "pue", "rerun",
        "results", "retry",
    }
)  # fmt: skip

_GROUPS = (
    "data", "model", "optimizer", "lr_rule", "schedule", "logger", "perturbation", "comm_hook",
)  # fmt: skip

#: Keys of a file that are not settings.
_NO_SETTINGS = ("defaults", "hydra")
#: The loader in C, if the package has it, takes a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: The key that only describes a class.
_ABOUT = "about"
#: More consecutive whole numbers than this are written as a range.
_MANY = 10
#: Whole numbers below this are exact as floats.
_EXACT = 1e15
_PLAIN = re.compile(r"[A-Za-z_/][\w./@%+-]*")
_LITERAL = re.compile(r"(?i)null|true|false|nan|inf")


def sweep_commands(configs: Sequence[Config], results: str, *more: str) -> list[str]:
    """Commands that train these runs and no others.

    Args:
        configs: of the runs, resolved; they may differ in anything.
        results: the folder.
        more: words that all commands end with.
    """
    alike: dict[str, list[Config]] = {}
    for config in configs:
        rest = {k: v for k, v in config.items() if k not in {*LISTED, *_LEFT_OUT}}
        alike.setdefault(json.dumps(rest, sort_keys=True), []).append(config)
    folder = [] if results == "results" else [f"results={_value_text(results)}"]
    commands: list[str] = []
    for rest, group in alike.items():
        words = list(_constant_words(json.loads(rest)))
        points = {tuple(_value_text(config.get(key)) for key in LISTED) for config in group}
        for columns in _split_grid(points):
            pairs = zip(LISTED, columns, strict=True)
            grid = [f"{key}={_list_text(values)}" for key, values in pairs]
            commands.append(
                shlex.join(["python", "-m", "sweeper", "-m", *words, *grid, *folder, *more])
            )
    return commands


def _split_grid(points: set[tuple[str, ...]]) -> Iterator[list[list[str]]]:
    """Products of values that are these points together; yields the values of every column."""

    def order(value: str) -> tuple[float, str]:
        try:
            return float(value), ""
        except ValueError:
            return 0.0, value

    columns = [sorted({*values}, key=order) for values in zip(*points, strict=True)]
    if prod(map(len, columns)) == len(points):
        yield columns
        return
    split = next(i for i, values in enumerate(columns) if len(values) > 1)
    for value in columns[split]:
        yield from _split_grid({point for point in points if point[split] == value})


def read_setting(config: Config, key: str) -> Any:
    """A setting by its dotted name; None if it is not there."""
    *groups, name = key.split(".")
    return reduce(lambda inner, group: inner[group], groups, config).get(name)


def change_setting(config: Config, key: str, value: Any) -> Config:
    """A config with another value of a dotted name."""
    first, _, rest = key.partition(".")
    return {**config, first: change_setting(config[first], rest, value) if rest else value}


def complete_config(config: Config) -> Config:
    """A config with the keys that were added after its run, at their defaults."""
    return {**_defaults(config), **config}


def _defaults(config: Config) -> Config:
    if not is_ours(config.get("module", {}).get("_target_", "sweeper.")):
        return _compose("own")
    model = (config.get("model") or {}).get("_target_")
    if model not in [group_settings("model", name)["_target_"] for name in ("gpt", "lstm")]:
        return _compose("classifier")
    return _compose("language_model") | {"model": {}}  # it is the model that chooses the module


@cache
def _compose(module: str) -> Config:
    """The settings of conf/config.yaml with a file of the group `module`."""
    layer = _read(f"module/{module}")
    layers = [_read("config"), {"module": layer} if "_target_" in layer else layer]
    settings: Config = {}
    for default in [entry for layer in layers for entry in layer.get("defaults", ())]:
        for key, choice in default.items() if isinstance(default, dict) else ():
            group = key.removeprefix("override /")
            if group != "module" and "/" not in group:
                settings[group] = choice and group_settings(group, choice)
    for layer in layers:
        settings |= {key: value for key, value in layer.items() if key not in _NO_SETTINGS}
    return settings


def group_settings(group: str, choice: str) -> Config:
    """What a file of a group sets in it, after the files that it builds on."""
    layer = _read(f"{group}/{choice}")
    settings: Config = {}
    for name in layer.get("defaults", ()):
        if isinstance(name, str) and name != "_self_":
            settings |= group_settings(group, name)
    layer = layer.get(group, layer)  # of a file that also sets keys outside its group
    return settings | {key: value for key, value in layer.items() if key not in _NO_SETTINGS}


@cache
def _read(name: str) -> Config:
    text = (CONFIG_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, _LOADER)


def _constant_words(config: Config) -> Iterator[str]:
    """Words for everything in which a config differs from the defaults."""
    base = _defaults(config)
    yield from _settings_words("module", config["module"], base["module"])
    for group in _GROUPS:
        if group in config and config[group] != base[group]:
            yield from _group_words(group, config[group])
    rest = {k: v for k, v in config.items() if k not in _GROUPS and k != "module"}
    # Models come with their own limit.
    base = {k: v for k, v in base.items() if k not in LISTED} | {"micro_batch_limit": None}
    yield from _settings_words("", rest, base, is_whole=False)


def _group_words(group: str, value: Config | None) -> list[str]:
    """A choice of a group's file and words for all that it sets otherwise, the fewest."""
    if value is None:
        return [f"{group}=null"]
    found: list[list[str]] = []
    for path in sorted((CONFIG_FOLDER / group).glob("*.yaml")):
        words = list(_settings_words(group, value, group_settings(group, path.stem)))
        is_own = path.stem == "own"  # a class of the user's own needs no choice
        found.append(words if is_own else [f"{group}={path.stem}", *words])
    return min(found, key=lambda words: (len(words), sum(map(len, words))))


def _settings_words(
    key: str, value: Mapping[str, Any], base: Mapping[str, Any], *, is_whole: bool = True
) -> Iterator[str]:
    """Words for what differs inside a key; if `is_whole`, also for removing absent keys."""
    for name, setting in value.items():
        path, default = f"{key}.{name}".lstrip("."), base.get(name)
        if name not in base:
            if setting is not None:
                yield f"+{path}={_value_text(setting)}"
        elif isinstance(setting, dict) and isinstance(default, dict):
            yield from _settings_words(path, setting, default)
        elif setting != default and not _is_alike(name, setting, default):
            yield f"{path}={_value_text(setting)}"
    for name, default in base.items():
        if is_whole and name not in value and default is not None and name != _ABOUT:
            yield f"~{key}.{name}"


def _is_alike(name: str, setting: Any, default: Any) -> bool:
    """Whether two values mean the same: a class of ours may have moved, defaults differ."""
    if name != "_target_" or not isinstance(setting, str) or not isinstance(default, str):
        return name == _ABOUT
    is_moved = setting.rpartition(".")[2] == default.rpartition(".")[2]
    return is_moved and is_ours(setting) and is_ours(default)


def _list_text(values: Sequence[str]) -> str:
    """Values as Hydra sweeps them; many consecutive whole numbers as a range."""
    numbers = [int(v) if v.isdigit() else -1 for v in values]
    is_row = len(values) > _MANY and numbers == list(range(numbers[0], numbers[0] + len(values)))
    return f"range({numbers[0]},{numbers[-1] + 1})" if is_row else ",".join(values)


def _value_text(value: Any) -> str:
    """A value in Hydra's grammar; in quotes, if Hydra would read a text as anything else."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{k}:{_value_text(v)}' for k, v in value.items())}}}"
    if not isinstance(value, str):
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
        return json.dumps(int(value) if is_whole else value)
    if _PLAIN.fullmatch(value) and not _LITERAL.fullmatch(value):
        return value
    quote = "'" if '"' in value and "'" not in value else '"'  # the shell has single quotes
    inner = value.replace(f"\\{quote}", f"\\\\{quote}").replace(quote, f"\\{quote}")
    return f"{quote}{inner}{quote}"
