"""From the settings of runs to the commands that train them: a config file's words, by hand."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from analysis.decide.presets import Composed, composed, defaults, files, group_settings
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


def commands(configs: Sequence[Config], results: str, *more: str) -> list[str]:
    """The fewest commands that train these runs and no others.

    Args:
        configs: of the runs, resolved; they may differ in anything.
        results: the folder.
        more: words that all commands end with.
    """
    alike: dict[str, list[Config]] = {}
    for config in configs:
        alike.setdefault(_rest(config), []).append(config)
    folder = [] if results == "results" else [_word("results", results)]
    return [
        shlex.join(["python", "-m", "sweeper", "-m", *words, *folder, *more])
        for group in alike.values()
        for words in _grids(group)
    ]


def complete(config: Config) -> Config:
    """A config with the keys that were added after its run, at their defaults."""
    module = "classifier" if _is_classifier(config) else "own"
    return {**composed(module).settings, **config}


def _grids(configs: Sequence[Config]) -> Iterator[list[str]]:
    """The words of each grid that these configs form, which differ only in what is listed."""
    base, words = _constant(_rest(configs[0]))
    points = {
        tuple(
            _of_rule(json.dumps(config[key])) if key == "lr_rule" else _text(config.get(key))
            for key in LISTED
        )
        for config in configs
    }
    for columns in _boxes(points):
        listed: Mapping[str, Any] = dict(zip(map(str, LISTED), columns, strict=True))
        yield [*words, *_listed_words(listed, base)]


def _listed_words(listed: Mapping[str, Sequence[Any]], base: Composed) -> Iterator[str]:
    for key, values in listed.items():
        if key == "lr_rule":
            yield from _rule_words(values, base)
        elif key != "base_lr" or values != [_text(base.settings["base_lr"])] or key in base.swept:
            yield f"{key}={_list(values)}"


def _rule_words(rules: Sequence[tuple[str, ...]], base: Composed) -> Iterator[str]:
    default = _of_rule(json.dumps(base.settings["lr_rule"]))
    if list(rules) == [default] and "lr_rule" not in base.swept:
        return
    first, *settings = rules[0]
    if len(rules) == 1:
        yield from (first, *settings)
    else:
        yield "lr_rule=" + ",".join(rule[0].removeprefix("lr_rule=") for rule in rules)


def _boxes(points: set[tuple[Any, ...]]) -> Iterator[list[list[Any]]]:
    """Split points into few products of values; yields the values of every column of each."""
    if points == {()}:
        yield []
        return
    rest: dict[Any, set[tuple[Any, ...]]] = {}
    for first, *others in points:
        rest.setdefault(first, set()).add(tuple(others))
    together: dict[frozenset[tuple[Any, ...]], list[Any]] = {}
    for first, others in sorted(rest.items(), key=lambda item: _order(item[0])):
        is_alone = isinstance(first, tuple) and len(first) > 1  # a rule with settings
        key = frozenset({*others, (first,)}) if is_alone else frozenset(others)
        together.setdefault(key, []).append(first)
    for firsts in together.values():
        for columns in _boxes(rest[firsts[0]]):
            yield [firsts, *columns]


def _order(value: Any) -> tuple[float, str]:
    try:
        return float(value), ""
    except (TypeError, ValueError):
        return 0.0, str(value)


def _list(values: Sequence[str]) -> str:
    """Values as Hydra sweeps them; many consecutive whole numbers as a range."""
    numbers = [int(v) if v.isdigit() else -1 for v in values]
    is_row = len(values) > _MANY and numbers == list(range(numbers[0], numbers[0] + len(values)))
    return f"range({numbers[0]},{numbers[-1] + 1})" if is_row else ",".join(values)


_MANY = 10


def _rest(config: Config) -> str:
    """The settings that are not listed, as JSON."""
    rest = {k: v for k, v in config.items() if k not in {*LISTED, *_LEFT_OUT}}
    return json.dumps(rest, sort_keys=True)


@cache
def _constant(text: str) -> tuple[Composed, list[str]]:
    """The presets that leave the fewest words to express the rest, and these words."""
    rest: Config = json.loads(text)
    module = "classifier" if _is_classifier(rest) else "own"
    none = _with_presets(rest, module, ())
    first = [_with_presets(rest, module, (("experiment", name),)) for name in files("experiment")]
    best = min([none, *filter(_is_whole, first)], key=_letters)
    for said in [best, *(one for one in first if "+recipe" in one[0].swept)]:
        recipes = [_with_presets(rest, module, (*said[2], ("recipe", r))) for r in files("recipe")]
        best = min([best, *filter(_is_whole, recipes)], key=_letters)
    base, words, _ = best
    return base, words


_Said = tuple[Composed, list[str], tuple[tuple[str, str], ...]]


def _with_presets(rest: Config, module: str, presets: tuple[tuple[str, str], ...]) -> _Said:
    base = composed(module, presets)
    words = [f"+{group}={choice}" for group, choice in presets]
    return base, [*words, *_differences(rest, base)], presets


def _is_whole(said: _Said) -> bool:
    """Whether the command gives a value to all that the presets would sweep."""
    base, _, presets = said
    return base.swept <= {*LISTED, *(f"+{group}" for group, _ in presets)}


def _letters(said: _Said) -> int:
    """How long words are to read: their letters, and ten more for each word."""
    return sum(10 + len(word) for word in said[1])


def _is_classifier(config: Config) -> bool:
    return is_ours(config.get("module", {}).get("_target_", "sweeper."))


def _differences(config: Config, base: Composed) -> Iterator[str]:
    """Words for everything in which a config differs from the composed one."""
    groups = {key: config[key] for key in _GROUPS if key in config}
    for key, value in groups.items():
        yield from _shortest(key, value, base)
    yield from _settings_words(
        "",
        {k: v for k, v in config.items() if k not in groups},
        {k: v for k, v in base.settings.items() if k not in {*groups, *LISTED, *_LEFT_OUT}},
        is_whole=False,
    )


def _shortest(group: str, value: Config | None, base: Composed) -> list[str]:
    """A group's words from the file that needs the fewest."""
    composed_settings, chosen = base.settings.get(group), base.choices.get(group)
    if value is None or composed_settings == value:
        return [] if composed_settings == value else [f"{group}=null"]
    found = [list(_settings_words(group, value, composed_settings))] if composed_settings else []
    return min([*found, *_from_files(group, value, without=chosen)], key=_length)


def _from_files(group: str, value: Config, without: str | None = None) -> Iterator[list[str]]:
    """A group's words from each file that can be chosen; a class of one's own needs no choice."""
    for choice in files(group):
        own = group in _OWN and choice == "own"
        if choice != without and (own or group != "module"):
            settings = _settings_words(group, value, group_settings(group, choice))
            yield [*([] if own else [f"{group}={choice}"]), *settings]


@cache
def _of_rule(text: str) -> tuple[str, ...]:
    """The words of a rule, whose settings are given as JSON."""
    return tuple(min(_from_files("lr_rule", json.loads(text)), key=_length))


def _length(words: Sequence[str]) -> tuple[int, int]:
    return len(words), sum(map(len, words))


def _settings_words(
    key: str, value: Mapping[str, Any], base: Mapping[str, Any], *, is_whole: bool = True
) -> Iterator[str]:
    """Words for what differs inside a key; if `is_whole`, also for removing absent keys."""
    for name, one in value.items():
        path = f"{key}.{name}".lstrip(".")
        if name not in base:
            if one is not None:
                yield f"+{_word(path, one)}"
        elif isinstance(one, dict) and isinstance(base[name], dict):
            yield from _settings_words(path, one, base[name])
        elif one != base[name] and not _is_alike(name, one, base[name]):
            yield _word(path, one)
    for name, default in base.items():
        if is_whole and name not in value and default is not None and name not in _SAID:
            yield f"~{key}.{name}"


#: Keys that only describe a class.
_SAID = ("about",)


def _is_alike(name: str, one: Any, other: Any) -> bool:
    """Whether two values mean the same: a class of ours may have moved, defaults differ."""
    if name in _SAID:
        return True
    if name == "micro_batch_limit":  # some models come with their own
        return {one, other} <= defaults(name)
    both = isinstance(one, str) and isinstance(other, str) and name == "_target_"
    same = both and one.rpartition(".")[2] == other.rpartition(".")[2]
    return bool(same and is_ours(one) and is_ours(other))


def _word(key: str, value: Any) -> str:
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{k}:{_text(v)}' for k, v in value.items())}}}"
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return json.dumps(int(value) if is_whole else value)


def _quoted(text: str) -> str:
    """In quotes, if Hydra would read it as anything but this text."""
    if _PLAIN.fullmatch(text) and not _LITERAL.fullmatch(text):
        return text
    quote = '"' if "'" in text and '"' not in text else "'"
    inner = text.replace(f"\\{quote}", f"\\\\{quote}").replace(quote, f"\\{quote}")
    return f"{quote}{inner}{quote}"


_EXACT = 1e15
_PLAIN = re.compile(r"[A-Za-z_/][\w./@%+-]*")
_LITERAL = re.compile(r"(?i)null|true|false|nan|inf")
