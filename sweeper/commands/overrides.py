"""From command-line words to resolved configs: Hydra's grammar and Hydra's composition.

Hydra composes once per distinct choice of groups; plain values are set on copies, so that a
large grid costs microseconds a point instead of Hydra's fifth of a second.
"""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONFIG_NAME = "config"
Config = dict[str, Any]


def config_folder() -> Path:
    """The folder of all defaults: in the checkout, or beside the installed package."""
    installed = Path(__file__).parents[1] / "conf"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "conf"


def plain(config: DictConfig) -> Config:
    """A composed config as resolved plain values, without Hydra's own part.

    Raises:
        ValueError: if a value is missing or an interpolation leads nowhere.
    """
    ours = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        container = OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        msg = f"every config value must be given; {error}."
        raise ValueError(msg) from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def resolved(settings: Mapping[str, Any]) -> Config:
    """The settings of a plugin, which Hydra hands over as config nodes, as plain values."""
    return {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in settings.items()
    }


def expand(loader: ConfigLoader, words: Sequence[str]) -> Iterator[Config]:
    """The resolved config of every point of a grid, in the order of its words.

    Args:
        loader: Hydra's, over all config directories of the command.
        words: overrides in Hydra's grammar; `a,b`, `choice()`, `range()` and `glob()` sweep.

    Raises:
        ValueError: if a word cannot be understood or its key does not exist.
    """
    axes = [_axis(override, loader) for override in parsed(words, loader)]
    templates: dict[tuple[str, ...], _Template] = {}
    for point in itertools.product(*axes):
        chosen = tuple(word.text for word in point if not word.is_value)
        if chosen not in templates:
            templates[chosen] = _Template(loader, chosen)
        yield templates[chosen].with_values([word for word in point if word.is_value])


def preset_axes(loader: ConfigLoader, words: Sequence[str]) -> Mapping[str, Any]:
    """The axes that the preset among the words brings along, from `hydra.sweeper.params`."""
    fixed = [o.input_line or "" for o in parsed(words, loader) if not o.is_sweep_override()]
    params = OmegaConf.select(_compose(loader, fixed), "hydra.sweeper.params")
    return params or {}


def with_preset_axes(params: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The words of a command after the axes of its preset, which they replace."""
    named = {word.split("=")[0].lstrip("+~") for word in words}
    axes = {key: value for key, value in params.items() if key.lstrip("+") not in named}
    return [*(f"{key}={value}" for key, value in axes.items()), *words]


def _axis(override: Override, loader: ConfigLoader) -> "list[_Word]":
    is_value = _is_value(override, loader)  # 60 ms: once, not for each of its values
    return [_Word(single, is_value=is_value) for single in values_of(override, loader)]


class _Word:
    """One override with one value, taken apart once for all points that share it."""

    def __init__(self, override: Override, *, is_value: bool) -> None:
        self.override, self.is_value = override, is_value
        self.text = override.input_line or ""
        self.path = override.key_or_group.split(".")
        self.value = _unquoted(override.value()) if is_value else None
        self.interpolates = "${" in str(self.value)


class _Template:
    """One choice of groups, composed; values are set on copies of it."""

    def __init__(self, loader: ConfigLoader, chosen: Sequence[str]) -> None:
        self._loader, self._chosen = loader, chosen
        self._composed = _compose(loader, chosen)
        keys = [str(key) for key in self._composed if key != "hydra"]
        ours = OmegaConf.masked_copy(self._composed, keys)
        self._has_interpolations = "${" in OmegaConf.to_yaml(ours)
        self._plain: Any = OmegaConf.to_container(ours)
        self._known: set[int] = set()

    def with_values(self, words: Sequence[_Word]) -> Config:
        for word in words:
            if id(word) not in self._known:
                _check_key(word.override, self._plain)
                self._known.add(id(word))
        if self._has_interpolations or any(word.interpolates for word in words):
            return plain(_compose(self._loader, [*self._chosen, *(word.text for word in words)]))
        config = _copied(self._plain)
        for word in words:
            *groups, name = word.path
            node = config
            for group in groups:
                node = node[group]
            node[name] = word.value
        _check_complete(config)
        return config


def _copied(node: Config) -> Config:
    """A copy whose mappings are its own; other values are never changed in place."""
    return {key: _copied(v) if isinstance(v, dict) else v for key, v in node.items()}


def _compose(loader: ConfigLoader, words: Sequence[str]) -> DictConfig:
    try:
        return loader.load_configuration(CONFIG_NAME, list(words), run_mode=RunMode.RUN)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(in_users_words(str(error))) from error


def parsed(words: Sequence[str], loader: ConfigLoader) -> list[Override]:
    """The words in Hydra's grammar.

    Raises:
        ValueError: if one cannot be understood.
    """
    try:
        return OverridesParser.create(config_loader=loader).parse_overrides(list(words))
    except HydraException as error:
        raise ValueError(in_users_words(str(error))) from error


def values_of(override: Override, loader: ConfigLoader) -> list[Override]:
    """The overrides, one value each, that a word of a grid stands for.

    Raises:
        ValueError: if it does not list its values.
    """
    if not override.is_sweep_override():
        return [override]
    if not override.is_discrete_sweep():
        msg = (
            f"{override.key_or_group} must be a list of values in a grid; got "
            f"{override.input_line}. Write a,b,c, choice() or range(), or use hydra/sweeper=optuna."
        )
        raise ValueError(msg)
    key = override.get_key_element()
    return parsed([f"{key}={value}" for value in override.sweep_string_iterator()], loader)


def _is_value(override: Override, loader: ConfigLoader) -> bool:
    """Whether an override sets a plain value of an existing key, as against choosing a group."""
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and not override.is_hydra_override()
        and not loader.get_group_options(override.key_or_group)
    )


def _unquoted(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Mapping):
        return {_unquoted(key): _unquoted(item) for key, item in value.items()}
    return [_unquoted(item) for item in value] if isinstance(value, list) else value


def _check_key(override: Override, config: Any) -> None:
    node, seen = config, list[str]()
    for name in override.key_or_group.split("."):
        if not isinstance(node, dict) or name not in node:
            raise ValueError(_unknown_key(override, ".".join(seen), node))
        node = node[name]
        seen.append(name)


def _unknown_key(override: Override, inside: str, node: Any) -> str:
    known = [str(key) for key in node] if isinstance(node, dict) else []
    name = override.key_or_group.removeprefix(f"{inside}.").split(".")[0]
    close = difflib.get_close_matches(name, known, n=1)
    prefix = f"{inside}." if inside else ""
    hint = (
        f"Did you mean {prefix}{close[0]}?"
        if close
        else f"Known keys{f' of {inside}' if inside else ''}: {', '.join(sorted(known))}."
    )
    return f"{override.key_or_group} is not a config key; got {override.input_line}. {hint}"


def _check_complete(config: Any, path: str = "") -> None:
    for key, value in config.items():
        if isinstance(value, dict):
            _check_complete(value, f"{path}{key}.")
        elif value == "???":
            msg = f"{path}{key} must be given; write {path}{key}=VALUE."
            raise ValueError(msg)


def in_users_words(text: str) -> str:
    """Hydra's message in our form: what must hold, what was given, what to do."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    if unknown_key := re.match(r"Could not override '(?P<key>[^']*)'", text):
        return _unknown_to_hydra(unknown_key["key"])
    if unknown_option := re.search(r"Could not find '(?P<group>[^']*)/(?P<option>[^'/]*)'", text):
        return _unknown_option(unknown_option["group"], unknown_option["option"], text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line for line in lines if not line.startswith("See http"))


def _unknown_to_hydra(key: str) -> str:
    known = [str(name) for name in OmegaConf.load(config_folder() / f"{CONFIG_NAME}.yaml")]
    known += [path.name for path in config_folder().iterdir() if path.is_dir()]
    close = difflib.get_close_matches(key, known, n=1) if "." not in key else []
    hint = f"Did you mean {close[0]}?" if close else "See them all with --cfg job."
    return f"{key} is not a config key. {hint}"


def _unknown_option(group: str, option: str, text: str) -> str:
    _, _, listed = text.partition("Available options in")
    known = [line.strip() for line in listed.splitlines()[1:]]
    known = [line for line in known if re.fullmatch(r"[\w.-]+", line)]
    close = difflib.get_close_matches(option, known, n=1)
    hint = f" Did you mean {group}={close[0]}?" if close else ""
    return f"{group} must be one of {', '.join(known)}; got {group}={option}.{hint}"
