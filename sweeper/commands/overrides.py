"""From overrides to resolved configs: Hydra's grammar and Hydra's composition.

Hydra composes once per distinct choice of groups; plain values are set on copies, so that a
large grid costs microseconds a point instead of Hydra's fifth of a second.
"""

import importlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, reduce
from operator import getitem
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeper.commands.refusals import (
    NOT_COMPOSED,
    check_group,
    check_key,
    explain_error,
    explain_unreadable,
)
from sweeper.console.printing import note
from sweeper.spec.config import Facts, RunConfig
from sweeper.spec.sentences import check_complete, missing_keys
from sweeper.upstream.hydras import (
    ConfigLoader,
    OverridesParser,
    compose_config,
    is_group_with_options,
    override_parser,
)

CONFIG_NAME = "config"
Config = dict[str, Any]


def plain_config(config: DictConfig) -> Config:
    """A composed config as resolved plain values, without Hydra's own part.

    A user's own keys that interpolations refer to, such as a group `paths`, are left out once they
    are resolved; parts of them that nothing refers to need not be resolvable, as they may be meant
    for other Hydra applications. ValueError if a value is missing or an interpolation fails.
    """
    ours = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    check_complete(OmegaConf.to_container(ours))
    _check_no_facts(config)
    _register_resolvers(config)
    text = OmegaConf.to_yaml(ours)
    try:
        return to_plain_values(
            {
                str(key): ours[key]
                for key in ours
                if key in RunConfig.model_fields or not re.search(rf"\$\{{{key}[.}}]", text)
            }
        )
    except OmegaConfBaseException as error:
        msg = f"every config value must be given; {explain_error(error)}"
        raise ValueError(msg) from error


def command_settings(config: DictConfig) -> Config:
    """What a command reads once for all its points, of a config that may lack what a grid gives.

    ValueError if an interpolation fails.
    """
    names = (*_COMMAND_KEYS, "budget", "metric", "metric_mode", "order")
    try:
        return to_plain_values({name: config[name] for name in names})
    except OmegaConfBaseException as error:
        msg = f"every config value must be given; {explain_error(error)}"
        raise ValueError(msg) from error


def _check_no_facts(config: DictConfig) -> None:
    """ValueError for a key that the program finds out by itself."""
    for key in Facts.model_fields:
        if key in config:
            msg = f"{key} must be left to the program, which finds it out; got {key}=. Remove it."
            raise ValueError(msg)


def _register_resolvers(config: DictConfig) -> None:
    """Import the modules of a project that register OmegaConf's resolvers; ValueError if not."""
    for name in OmegaConf.select(config, "resolvers") or ():
        try:
            importlib.import_module(str(name))
        except Exception as error:
            msg = (
                "resolvers must name modules that can be imported, such as [myproj.resolvers]; got "
                f"{name}: {error}. Correct it, or put its folder on PYTHONPATH."
            )
            raise ValueError(msg) from error


def to_plain_values(settings: Mapping[str, Any]) -> Config:
    """The settings of a plugin as plain values; Hydra passes them as config nodes."""
    return {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in settings.items()
    }


def expand(loader: ConfigLoader, overrides: Sequence[str]) -> Iterator[Config]:
    """The resolved config of every point of a grid, in the order of its overrides.

    The overrides are in Hydra's grammar, where `a,b`, `choice()`, `range()` and `glob()` sweep.
    ValueError if an override cannot be parsed or its key does not exist.
    """
    axes = [
        [
            _Single(single, is_value=_is_value(override, loader))
            for single in split_values(override, loader)
        ]
        for override in parse(overrides, loader)
    ]
    _check_size(axes)
    groups = [[choice.text for choice in axis] for axis in axes if axis and not axis[0].is_value]
    given = {axis[0].override.key_or_group for axis in axes if axis}
    _check_preset_grids(loader, groups, given)
    for point in itertools.product(*axes):
        chosen = tuple(choice.text for choice in point if not choice.is_value)
        template = _template(loader, chosen)
        yield template.with_values([value for value in point if value.is_value])


#: The most points of a command; checking a thousand takes a second.
_MOST_POINTS = 100_000
#: The most values of a key; Hydra parses each in a millisecond.
MOST_VALUES = 10_000
#: From this many points on, the command says that it is checking them.
_MANY_POINTS = 3_000


def _check_size(axes: "Sequence[Sequence[_Single]]") -> None:
    """Announce the check of a large grid; ValueError if it is far too large."""
    points = math.prod(map(len, axes))
    if points > _MOST_POINTS:
        sizes = [f"{axis[0].override.key_or_group} ({len(axis):,})" for axis in axes if axis[1:]]
        msg = (
            f"a grid must have at most {_MOST_POINTS:,} points; got {points:,} or more, from "
            f"{', '.join(sizes)}. Split it over several commands."
        )
        raise ValueError(msg)
    if points >= _MANY_POINTS:
        note(f"Checking {points:,} points.")


def _check_preset_grids(
    loader: ConfigLoader, groups: Sequence[Sequence[str]], given: Collection[str]
) -> None:
    """Refuse a grid over presets that have grids of their own, since those would be ignored.

    Args:
        loader: composes the presets.
        groups: for each group, its choices as typed.
        given: all keys that the command sets.

    Raises:
        ValueError: naming the preset.
    """
    if all(len(choices) == 1 for choices in groups):
        return
    known = _grid_of_preset(loader, [choices[0] for choices in groups if len(choices) == 1])
    for chosen in itertools.product(*groups):
        swept = [key for key in _grid_of_preset(loader, chosen) if key not in known]
        if left_out := [key for key in swept if key.lstrip("+") not in given]:
            msg = (
                "a grid must not combine presets that have grids of their own; got "
                f"{' '.join(chosen)}, whose grid over {', '.join(left_out)} would be left out. "
                "Give each a command of its own; runs that they share are trained once."
            )
            raise ValueError(msg)


def preset_overrides(loader: ConfigLoader, overrides: Sequence[str]) -> Mapping[str, Any]:
    """The overrides that a preset adds, from `hydra.sweeper.params`."""
    fixed = [o for o in parse(add_own_classes(overrides), loader) if not o.is_sweep_override()]
    chosen = [o.input_line or "" for o in fixed if not _is_value(o, loader)]
    return _grid_of_preset(loader, chosen)


def merge_preset(params: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """The overrides of a preset that a command does not replace, followed by the command's own.

    A user's own class does not get the settings of the default choice.
    """
    given = {override.split("=")[0].lstrip("+~") for override in overrides}
    left = [f"{key}={value}" for key, value in params.items() if key.lstrip("+") not in given]
    return add_own_classes([*left, *overrides])


#: Groups whose options are a class and its settings: a user's own class has other settings.
_CLASS_GROUPS = ("module", "data", "model")


def add_own_classes(words: Sequence[str]) -> list[str]:
    """The words of a command, with `GROUP=own` added where they name a user's own class.

    Otherwise `module._target_=package.Class` would get the settings of the default choice.
    """
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    found: list[str] = []
    for key, word in zip(keys, words, strict=True):
        group, _, rest = key.partition(".")
        if rest == "_target_" and group in _CLASS_GROUPS and group not in keys:
            found.append(f"{group}=own")
        found.append(word)
    return found


def _grid_of_preset(loader: ConfigLoader, chosen: Sequence[str]) -> Mapping[str, Any]:
    composed = _template(loader, tuple(chosen)).composed
    return OmegaConf.select(composed, "hydra.sweeper.params") or {}


class _Single:
    """An override with a single value, parsed once for all points that share it."""

    def __init__(self, override: Override, *, is_value: bool) -> None:
        self.override, self.is_value = override, is_value
        self.text = override.input_line or ""
        self.path = override.key_or_group.split(".")
        self.value = _unquoted(override.value()) if is_value else None
        self.interpolates = "${" in str(self.value)
        self.may_lack = "???" in str(self.value)


#: Stands for the names in a text with nested interpolations, which may refer to anything.
_ANYTHING = "${"


def _names_in(text: str) -> frozenset[str]:
    """The words inside a text's interpolations, which include every key that they refer to."""
    if re.search(r"\$\{[^{}]*\{", text):
        return frozenset({_ANYTHING})
    inside = re.findall(r"\$\{([^{}]*)\}", text)
    return frozenset(re.findall(r"\w+", " ".join(inside)))


class _Template:
    """The composed config of a choice of groups; plain values are set on copies of it."""

    def __init__(self, loader: ConfigLoader, chosen: Sequence[str]) -> None:
        self._loader, self._chosen = loader, chosen
        self.composed = _compose(loader, chosen)
        ours = OmegaConf.masked_copy(self.composed, [str(k) for k in self.composed if k != "hydra"])
        _check_no_facts(ours)
        self._plain: Any = OmegaConf.to_container(ours)
        self._names = _names_in(str(self._plain))
        self._lacks = any(missing_keys(self._plain))
        self._resolved = dict[tuple[str, ...], Config]()
        self._known: set[str] = set()

    def with_values(self, values: Sequence[_Single]) -> Config:
        for value in values:
            if (key := value.override.key_or_group) not in self._known:
                check_key(value.override, self._plain)
                self._known.add(key)
        meant = self._meant(values)
        config = {**self._with_meant(meant)}  # points share groups, so none is changed in place
        for value in (value for value in values if value not in meant):
            *groups, name = value.path
            node = config
            for group in groups:
                node[group] = node = {**node[group]}
            node[name] = value.value
        if self._lacks or any(value.may_lack for value in values):
            check_complete(config)
        return config

    def _meant(self, values: Sequence[_Single]) -> Sequence[_Single]:
        """The values that interpolate or replace what does, or that may be referred to.

        `resolvers` are among them, since Hydra's composition needs them.
        """
        names = self._names.union(*(_names_in(str(v.value)) for v in values if v.interpolates))
        is_any = (bool(names) and self._lacks) or _ANYTHING in names
        # A name may refer to the key itself, to a group that holds it, or into it.
        meant = [
            value
            for value in values
            if is_any
            or value.interpolates
            or not {*names, "resolvers"}.isdisjoint(value.path)
            or "${" in str(reduce(getitem, value.path, self._plain))
        ]
        return values if meant and self._lacks else meant

    def _with_meant(self, values: Sequence[_Single]) -> Config:
        """The config that Hydra composes with these values, cached for all points with them."""
        texts = tuple(value.text for value in values)
        if not texts and not self._names:
            return self._plain
        if texts not in self._resolved:
            self._resolved[texts] = plain_config(_compose(self._loader, [*self._chosen, *texts]))
        return self._resolved[texts]


@cache
def _template(loader: ConfigLoader, chosen: tuple[str, ...]) -> _Template:
    """The template of a choice, composed once per process: a tuner asks again for each trial."""
    return _Template(loader, chosen)


def _compose(loader: ConfigLoader, overrides: Sequence[str]) -> DictConfig:
    try:
        return compose_config(loader, CONFIG_NAME, overrides)
    except NOT_COMPOSED as error:
        raise ValueError(explain_error(error, overrides)) from error
    except AssertionError as error:  # Hydra's own, for a number where an option is chosen
        msg = (
            "a group must be chosen by the name of an option; got "
            f"{' '.join(overrides)}, which gives another value. Write GROUP=OPTION."
        )
        raise ValueError(msg) from error


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """The overrides, read in Hydra's grammar; ValueError if any cannot be parsed."""
    parser = override_parser(loader)
    return [_parse_word(word, parser) for word in overrides]


def _parse_word(word: str, parser: OverridesParser) -> Override:
    try:
        (found,) = parser.parse_overrides([word])
    except HydraException as error:
        raise ValueError(explain_error(error)) from error
    except (ValueError, RecursionError) as error:  # thousands of digits or brackets
        raise ValueError(explain_unreadable(word, str(error))) from None
    if not found.key_or_group:
        raise ValueError(explain_unreadable(word, "it has no key"))
    if isinstance(found.value(), list) or "." in found.key_or_group:
        check_group(found)
    return found


def split_values(override: Override, loader: ConfigLoader) -> list[Override]:
    """The single-value overrides of an override; ValueError if its values cannot be listed."""
    if not override.is_sweep_override():
        return [override]
    if not override.is_discrete_sweep():
        msg = (
            f"{override.key_or_group} must be a list of values in a grid; got "
            f"{override.input_line}. Write a,b,c, choice() or range(); intervals are "
            "searched with hydra/sweeper=optuna only."
        )
        raise ValueError(msg)
    key = override.get_key_element()
    if override.is_hydra_override() or key in _COMMAND_KEYS:
        msg = (
            f"{key} must be the same for all runs of a command; got {override.input_line}. Give "
            "it one value."
        )
        raise ValueError(msg)
    try:
        found = list(itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1))
    except (ValueError, ArithmeticError) as error:  # a step of 0, or a bound that is no number
        why = "" if isinstance(error, ArithmeticError) else f": {error}"
        msg = f"{key} must list its values; got {override.input_line}{why}. Correct the range."
        raise ValueError(msg) from error
    if len(found) > MOST_VALUES:
        given = override.input_line
        msg = f"{key} must have at most {MOST_VALUES:,} values; got {given}. Split the grid."
        raise ValueError(msg)
    return parse([f"{key}={value}" for value in found], loader)


#: Keys that a command reads once for all its points.
_COMMAND_KEYS = ("results", "retry", "rerun", "code", "keep_going", "n_trials", "question")


def _is_value(override: Override, loader: ConfigLoader) -> bool:
    """Whether an override sets a plain value of an existing key, rather than choosing an option."""
    key = override.key_or_group
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and not override.is_hydra_override()
        and not is_group_with_options(loader, key)
    )


def _unquoted(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Mapping):
        return {_unquoted(key): _unquoted(item) for key, item in value.items()}
    return [_unquoted(item) for item in value] if isinstance(value, list) else value
