"""From the settings of runs to the commands that train them: a config file's words, by hand."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from analysis.decide.presets import Composed, compose, group_files, group_settings, preset_values
from sweeper.spec.config import is_ours

Config = dict[str, Any]

#: Keys whose values a command lists, in the order in which they are written.
LISTED = ("lr_rule", "base_lr", "batch", "warmup", "seed")

#: Keys about one command or its cluster, or filled in.
_LEFT_OUT = frozenset(
    {
        "budget", "code", "data_order", "energy_price", "guarantees", "hardware", "keep_going",
        "n_trials", "order", "predicted", "predicted_memory_gib", "price", "pue", "rerun",
        "results", "retry",
    }
)  # fmt: skip

_GROUPS = (
    "module", "data", "model", "optimizer", "schedule", "logger", "perturbation", "comm_hook",
)  # fmt: skip

#: Groups in which a user's own class needs no choice of a file.
_OWN = ("module", "data", "model")
#: The key that only describes a class.
_ABOUT = "about"
#: More consecutive whole numbers than this are written as a range.
_MANY = 10
#: Whole numbers below this are exact as floats.
_EXACT = 1e15
_PLAIN = re.compile(r"[A-Za-z_/][\w./@%+-]*")
_LITERAL = re.compile(r"(?i)null|true|false|nan|inf")


def sweep_commands(configs: Sequence[Config], results: str, *more: str) -> list[str]:
    """The fewest commands that train these runs and no others.

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
    return [
        shlex.join(["python", "-m", "sweeper", "-m", *words, *folder, *more])
        for rest, group in alike.items()
        for words in _grid_words(rest, group)
    ]


def complete_config(config: Config) -> Config:
    """A config with the keys that were added after its run, at their defaults."""
    return {**compose(_module_file(config)).settings, **config}


def _module_file(config: Config) -> str:
    return "classifier" if is_ours(config.get("module", {}).get("_target_", "sweeper.")) else "own"


def _grid_words(rest: str, configs: Sequence[Config]) -> Iterator[list[str]]:
    """The words of each grid that these configs form, which differ only in what is listed."""
    base, words = _constant_words(rest)
    rule, *others = LISTED
    points: set[tuple[Any, ...]] = {
        (_rule_words(json.dumps(c[rule])), *(_value_text(c.get(key)) for key in others))
        for c in configs
    }
    default_lr = [_value_text(base.settings["base_lr"])]
    default_rule = _rule_words(json.dumps(base.settings["lr_rule"]))
    for rules, *columns in _split_into_boxes(points):
        grid: list[str] = []
        if len(rules) > 1:
            grid = ["lr_rule=" + ",".join(rule[0].removeprefix("lr_rule=") for rule in rules)]
        elif rules != [default_rule] or "lr_rule" in base.swept:
            grid = list(rules[0])
        for key, values in zip(others, columns, strict=True):
            if key != "base_lr" or values != default_lr or key in base.swept:
                grid.append(f"{key}={_list_text(values)}")
        yield [*words, *grid]


def _split_into_boxes(points: set[tuple[Any, ...]]) -> Iterator[list[list[Any]]]:
    """Split points into few products of values; yields the values of every column of each."""
    if points == {()}:
        yield []
        return
    rest: dict[Any, set[tuple[Any, ...]]] = {}
    for first, *others in points:
        rest.setdefault(first, set()).add(tuple(others))

    def order(value: Any) -> tuple[float, str]:
        try:
            return float(value), ""
        except (TypeError, ValueError):
            return 0.0, str(value)

    together: dict[frozenset[tuple[Any, ...]], list[Any]] = {}
    for first in sorted(rest, key=order):
        is_alone = isinstance(first, tuple) and len(first) > 1  # a rule with settings
        key = frozenset({*rest[first], (first,)}) if is_alone else frozenset(rest[first])
        together.setdefault(key, []).append(first)
    for firsts in together.values():
        for columns in _split_into_boxes(rest[firsts[0]]):
            yield [firsts, *columns]


@cache
def _constant_words(text: str) -> tuple[Composed, list[str]]:
    """The presets that leave the fewest words to express the rest, and these words.

    Of presets, only those count whose lists of values the command replaces.
    """
    rest: Config = json.loads(text)
    module = _module_file(rest)

    def expressed(*presets: tuple[str, str]) -> tuple[Composed, list[str]]:
        base = compose(module, presets)
        words = [f"+{group}={choice}" for group, choice in presets]
        return base, [*words, *_different_words(rest, base)]

    def letters(presets: tuple[tuple[str, str], ...]) -> int:
        base, words = expressed(*presets)
        is_whole = base.swept <= {*LISTED, *(f"+{group}" for group, _ in presets)}
        return sum(10 + len(word) for word in words) if is_whole else 10**9

    experiments = [(("experiment", name),) for name in group_files("experiment")]
    best = min([(), *experiments], key=letters)
    with_recipes = [e for e in experiments if "+recipe" in compose(module, e).swept]
    recipes = [("recipe", name) for name in group_files("recipe")]
    more = [(*first, recipe) for first in [best, *with_recipes] for recipe in recipes]
    return expressed(*min([best, *more], key=letters))


def _different_words(config: Config, base: Composed) -> Iterator[str]:
    """Words for everything in which a config differs from the composed one."""
    groups = [key for key in _GROUPS if key in config]
    for group in groups:
        value, settings = config[group], base.settings.get(group)
        if value == settings:
            continue
        if value is None:
            yield f"{group}=null"
            continue
        found = [list(_settings_words(group, value, settings))] if settings else []
        found += _words_by_file(group, value, without=base.choices.get(group))
        yield from min(found, key=_length)
    left_out = {*groups, *LISTED, *_LEFT_OUT}
    settings = {k: v for k, v in base.settings.items() if k not in left_out}
    rest = {k: v for k, v in config.items() if k not in groups}
    yield from _settings_words("", rest, settings, is_whole=False)


def _words_by_file(group: str, value: Config, without: str | None = None) -> Iterator[list[str]]:
    """A group's words from each file that can be chosen; a class of one's own needs no choice."""
    for choice in group_files(group):
        is_own = group in _OWN and choice == "own"
        if choice != without and (is_own or group != "module"):
            settings = _settings_words(group, value, group_settings(group, choice))
            yield [*([] if is_own else [f"{group}={choice}"]), *settings]


@cache
def _rule_words(text: str) -> tuple[str, ...]:
    """The words of a rule, whose settings are given as JSON."""
    return tuple(min(_words_by_file("lr_rule", json.loads(text)), key=_length))


def _length(words: Sequence[str]) -> tuple[int, int]:
    return len(words), sum(map(len, words))


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
    if name == "micro_batch_limit":  # some models come with their own
        return {setting, default} <= preset_values(name)
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
    quote = '"' if "'" in value and '"' not in value else "'"
    inner = value.replace(f"\\{quote}", f"\\\\{quote}").replace(quote, f"\\{quote}")
    return f"{quote}{inner}{quote}"
