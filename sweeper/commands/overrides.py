"""From overrides to resolved configs: Hydra's grammar and Hydra's composition.

Hydra composes once per distinct choice of groups; plain values are set on copies, so that a
large grid costs microseconds a point instead of Hydra's fifth of a second.
"""

import importlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, reduce
from operator import getitem
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeper.commands.grid_words import (
    LENGTH_WORDS,
    TOGETHER,
    WHERE,
    Where,
    split_grid_words,
)
from sweeper.commands.refusals import (
    ADDED_GROUPS,
    NOT_COMPOSED,
    check_group,
    check_key,
    explain_error,
    explain_unreadable,
)
from sweeper.commands.user_conf import (
    CLASS_GROUPS,
    leave_out,
    left_out_groups,
    refer_to_run,
    user_choices,
)
from sweeper.console.printing import note
from sweeper.spec.config import LAYOUT_KEYS, LENGTHS, Facts, Incidental, RunConfig
from sweeper.spec.sentences import check_complete, missing_keys
from sweeper.spec.text_lengths import batches_to_examples
from sweeper.upstream.hydras import (
    ConfigLoader,
    OverridesParser,
    compose_config,
    is_group_with_options,
    override_parser,
)
from sweeper.upstream.instantiation import instantiate

CONFIG_NAME = "config"
Config = dict[str, Any]


def plain_config(config: DictConfig) -> Config:
    """A composed config as resolved plain values, without Hydra's own part.

    A user's own keys that interpolations refer to, such as a group `paths`, are left out once they
    are resolved; parts of them that nothing refers to need not be resolvable, as they may be meant
    for other Hydra applications. ValueError if a value is missing or an interpolation fails.
    """
    refer_to_run(config)
    ours = _without_hydra(config)
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
        raise ValueError(_explain_unresolved(error, ours)) from error


def _explain_unresolved(error: OmegaConfBaseException, config: DictConfig) -> str:
    """A sentence on a value that cannot be resolved."""
    is_known = "Environment variable" in str(error)
    if is_known or "raised while resolving interpolation" not in str(error):
        return f"every config value must be given; {explain_error(error)}"
    written: Any = OmegaConf.to_container(config)
    for name in str(error.full_key).split("."):
        written = written[name]
    return (
        f"{error.full_key} must refer to something that can be found; got "
        f"{error.full_key}={written}. Correct what follows the colon, or write a value."
    )


def _without_hydra(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def _check_no_facts(config: DictConfig) -> None:
    """ValueError for a key that the program finds out by itself, or that Hydra has misplaced."""
    for key in Facts.model_fields:
        if key in config:
            msg = f"{key} must be left to the program, which finds it out; got {key}=. Remove it."
            raise ValueError(msg)
    for group in ADDED_GROUPS:
        if group in config:
            keys = ", ".join(map(str, config[group] or ()))
            msg = (
                f"a config of {group} must have # @package _global_ in its first line; got none, "
                f"so its keys ({keys}) would set nothing. Add it."
            )
            raise ValueError(msg)


def _check_nested(config: DictConfig) -> None:
    """ValueError for a key of a file that is written as on a command line: `optimizer.momentum`."""
    for group, dot, name in (str(key).partition(".") for key in config):
        if dot and group in {*RunConfig.model_fields, "hydra"}:
            msg = (
                f"a config file must nest its keys; got {group}.{name}: ... Write {group}: and, "
                f"below it and indented, {name}: ..."
            )
            raise ValueError(msg)


def _register_resolvers(config: DictConfig) -> None:
    """Import the modules of a project that register OmegaConf's resolvers; ValueError if not."""
    named = OmegaConf.select(config, "resolvers")
    if named is not None and not OmegaConf.is_list(named):
        msg = (
            "resolvers must be a list of modules that register resolvers, such as "
            f"[myproj.resolvers]; got resolvers={named}. Correct it."
        )
        raise ValueError(msg)
    for name in named or ():
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
    words, plain = split_grid_words(overrides)
    plain = [*plain, *spell_lengths(words, plain)]
    axes = [
        [_Single(single, loader) for single in split_values(override, loader)]
        for override in parse(plain, loader)
    ]
    groups = [[c.text for c in axis] for axis in axes if axis and axis[0].may_name_class]
    given = {axis[0].override.key_or_group: axis[0].text for axis in axes if axis}
    _check_preset_grids(loader, groups, given)
    entries = read_together(words, given)
    together = [[_Single(override, loader) for override in entry] for entry in entries]
    _check_size([*axes, *([entry[0] for entry in together] for _ in together[:1])])
    stays = [Where(word) for word in words if word.startswith(WHERE)]
    left_out, num_points, num_out = left_out_groups(loader), 0, 0
    for entry, singles in itertools.product(together or [[]], itertools.product(*axes)):
        point = [*entry, *singles]
        chosen = tuple(choice.text for choice in point if not choice.is_value)
        classes = tuple(choice.text for choice in point if choice.may_name_class)
        template = _template(loader, (*_own_choices(loader, classes), *chosen))
        config = template.with_values([value for value in point if value.is_value])
        is_list = isinstance(config.get("tags"), list)
        if left_out is not None or config.get("trainer") or is_list:
            config = leave_out(config, left_out, [single.text for single in point])
        typed = {single.override.key_or_group for single in point}
        _check_milestones(config, typed)
        options = {o.key_or_group: o.value() for o in (s.override for s in point if not s.is_value)}
        num_points += 1
        if all(stay(options, config) for stay in stays):
            yield batches_to_examples(_read_lengths(config, typed), typed)
        else:
            num_out += 1
    if num_out == num_points:
        msg = f"where must leave a point of the grid; got {stays[0].word}. Correct it."
        raise ValueError(msg)
    if num_out:
        note(f"Left out by where: {num_out:,} of {num_points:,} points.")


def read_together(words: Sequence[str], given: Mapping[str, str]) -> list[list[Override]]:
    """The overrides of each entry of `together=[{KEY:VALUE,...},...]`; none without such a word.

    ValueError if it is no such list, if its entries differ in their keys, or if one is in `given`.
    """
    texts = [word for word in words if word.startswith(TOGETHER)]
    values = [_unquoted(override.value()) for override in parse(texts)]
    entries = values[0] if values and isinstance(values[0], list) else []
    first = entries[0] if entries and isinstance(entries[0], dict) else {}
    are_alike = all(isinstance(e, dict) and e.keys() == first.keys() for e in entries)
    rule = ""
    if texts and not (first and are_alike and len(texts) == 1):
        rule = "be one list of entries with the same keys, as [{batch:64,base_lr:.1},...]"
    elif both := [key for key in given if key in first]:
        rule = f"have keys that are set nowhere else, as {given[both[0]]} does"
    if rule:
        msg = f"together must {rule}; got {' '.join(texts)}. Correct it."
        raise ValueError(msg)
    found = [
        parse([f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()])
        for entry in entries
    ]
    for override in itertools.chain(*found[1:]):
        _check_may_vary(override)
    return found


#: What a length is multiplied by; batches have no such words, as k is also used for 1,024.
_SUFFIXES = {"k": 10**3, "M": 10**6, "B": 10**9}


def spell_lengths(words: Sequence[str], plain: Sequence[str]) -> list[str]:
    """The overrides that `lengths=[2,4]`, `lengths_unit=` and `cooldown=` of a command stand for.

    ValueError if they are not such words, or if its other overrides say what they say.
    """
    given = dict(word.split("=", 1) for word in words if word.startswith(LENGTH_WORDS))
    if not given:
        return []
    unit, shown = given.get("lengths_unit", "epochs"), [f"{k}={v}" for k, v in given.items()]
    given_list: Any = parse([f"lengths={given.get('lengths', 'null')}"])[0].value()
    lengths = [*map(_to_whole, given_list)] if isinstance(given_list, list) else []
    are_whole = all(type(n) is int and n > 0 for n in lengths)
    keys = {*LENGTHS, "trunk", *(["schedule.cooldown"] if "cooldown" in given else [])}
    both = [word for word in plain if word.split("=")[0].lstrip("+") in keys]
    both += [w for w in plain if re.match(r"\+?schedule=(?!wsd$)", w)]
    rule = ""
    if not (are_whole and lengths) or len({*lengths}) < len(lengths):
        rule = "lengths must be a list of different whole numbers, such as lengths=[2,4,8]"
    elif unit not in LENGTHS:
        rule = f"lengths_unit must be one of {', '.join(LENGTHS)}"
    elif both:
        rule = "lengths must be the only words on the length, and their schedule wsd"
    if rule:
        msg = f"{rule}; got {' '.join([*shown, *both])}. Correct it."
        raise ValueError(msg)
    listed = ",".join(map(str, sorted(lengths)))
    cooldown = [f"schedule.cooldown={given[key]}" for key in ("cooldown",) if key in given]
    return ["schedule=wsd", *cooldown, f"{unit}={listed}", f"trunk=[{listed}]"]


def _read_lengths(config: Config, typed: Collection[str]) -> Config:
    """A config whose typed length, or a preset's other than epochs, replaces the default.

    Lengths may be written as 2.5e9 or 2.5B, and batches as 1e6.
    """
    given = [key for key in LENGTHS if config.get(key) is not None]
    meant = [key for key in given if key in typed] or [key for key in given if key != "epochs"]
    found = {**config, **{key: None for key in given if meant and key not in meant}}
    for key in (*LENGTHS, "batch", "base_batch"):
        if key in found and key != "epochs":  # nobody means so many
            found[key] = _to_whole(found[key], has_suffix=key in LENGTHS)
    return found


def _to_whole(value: Any, *, has_suffix: bool = True) -> Any:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB])", str(value)) if has_suffix else None
    number = float(Fraction(parts[1]) * _SUFFIXES[parts[2]]) if parts else value
    return int(number) if isinstance(number, float) and number.is_integer() else value


def _check_milestones(config: Config, typed: Collection[str]) -> None:
    """ValueError if a typed unit would be that of milestones which a file gives in epochs."""
    unit, schedule = config.get("warmup_unit"), config.get("schedule") or {}
    is_typed = "warmup_unit" in typed and "schedule.milestones" not in typed
    has_own = schedule.get("name") in ("periodic_decay", "growing_batch")
    if is_typed and unit in ("steps", "examples", "tokens", "percent") and has_own:
        msg = (
            f"schedule.milestones must be given in {unit} with warmup_unit={unit}; got none, and "
            f"the schedule's own {schedule['milestones']} are epochs. Write "
            "schedule.milestones=[...], or another schedule, such as schedule=cosine."
        )
        raise ValueError(msg)


def spell_for_hydra(
    loader: ConfigLoader, words: Sequence[str], typed: Sequence[str]
) -> Sequence[str]:
    """The typed words of a checked command as Hydra takes them; `words` has a preset's, too.

    Before them come the choices that all points need for classes of the user's, if they share
    these. Arguments of classes that the config does not list get a ++.
    """
    given = [_Single(override, loader) for override in parse(split_grid_words(words)[1], loader)]
    naming = [single for single in given if single.may_name_class]
    are_same = not any(single.override.is_sweep_override() for single in naming)
    choices = _own_choices(loader, tuple(s.text for s in naming)) if are_same else ()
    single = [s for s in given if not s.override.is_sweep_override()]
    template = _template(loader, (*choices, *(s.text for s in single if not s.is_value)))
    lacking = {s.text for s in single if template.lacks(s)}
    ours, plain = split_grid_words(typed)
    if ours:  # for our sweeper alone
        quoted = (QuotedString(word, Quote.single).with_quotes() for word in ours)
        choices = [*choices, f"hydra.sweeper.words=[{','.join(quoted)}]"]
    return [*choices, *("++" * (word in lacking) + word for word in plain)]


#: The most points of a command; checking a thousand takes a second.
_MOST_POINTS = 100_000
#: The most values of a key; Hydra parses each in a millisecond.
MOST_VALUES = 10_000
#: From this many points on, the command says that it is checking them.
_MANY_POINTS = 3_000


def _check_size(axes: "Sequence[Sequence[_Single]]") -> None:
    """Announce the check of a large grid; ValueError if it is empty or far too large."""
    points = math.prod(map(len, axes))
    if not points:
        msg = (
            "the grid must have a point; an override has no value, such as range(0,0) or a glob "
            "that matches nothing. Give each key a value."
        )
        raise ValueError(msg)
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
    """The overrides that a preset adds, from `hydra.sweeper.params`.

    ValueError if a setting of our launcher is wrong: a plan, which starts nothing, asks here too.
    """
    _, plain = split_grid_words(overrides)
    given = parse(add_own_classes(plain), loader)
    _check_repeats(overrides)
    for few, hundreds in re.findall(r"\bbatch=(\d\d?),(\d{3})(?= |$)", " ".join(overrides)):
        if hundreds[0] == "0" or math.log2(int(hundreds) / int(few or 1)) % 1:
            note(f"batch={few},{hundreds} is two batches; for one, write batch={few}{hundreds}.")
    fixed = [_Single(o, loader) for o in given if not o.is_sweep_override()]
    chosen = [single.text for single in fixed if single.may_name_class]
    launcher = _template(loader, tuple(chosen)).composed.hydra.launcher
    if launcher["_target_"].startswith("hydra_plugins.sweeper_hydra."):  # others have no check
        instantiate(launcher).check()
    return _grid_of_preset(loader, chosen)


def _check_repeats(words: Sequence[str]) -> None:
    """ValueError for batches or seeds that are set twice, of which Hydra would take the last."""
    for key in ("batch", "seed"):
        typed = [word for word in words if word.startswith(f"{key}=")]
        if len(typed) > 1:
            each = ",".join(word.partition("=")[2] for word in typed)
            got = f"{key} must be set once; got {' '.join(typed)}"
            msg = f"{got}. For a run with each: {key}={each}."
            raise ValueError(msg)


def merge_preset(params: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """The overrides of a preset that a command does not replace, followed by the command's own.

    A user's own class does not get the settings of the default choice.
    """
    given = {override.split("=")[0].lstrip("+~") for override in overrides}
    given |= {o.key_or_group for o in itertools.chain(*read_together(overrides, {}))}
    if not given.isdisjoint({*LENGTHS, "lengths"}):
        given |= {*LENGTHS}
    if "lengths" in given:
        given |= {"schedule", "schedule.cooldown"}
    named = {str(key): _param_text(value) for key, value in params.items()}
    left = [f"{key}={text}" for key, text in named.items() if key.lstrip("+") not in given]
    return add_own_classes([*left, *overrides])


def _param_text(value: Any) -> str:
    """A value of a preset's grid in Hydra's grammar, of which a text is a part already."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | ListConfig):
        return ",".join(map(_param_text, value))
    return json.dumps(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)


def add_own_classes(words: Sequence[str]) -> list[str]:
    """The words of a command, with `GROUP=own` added where they name a user's own class.

    Otherwise `module._target_=package.Class` would get the settings of the default choice.
    """
    chosen = [word.partition("=")[0] for word in words if "={" not in word]
    found: list[str] = []
    for word in words:
        group, _, rest = word.lstrip("+").partition("=")[0].partition(".")
        if rest == "_target_" and group in CLASS_GROUPS and group not in chosen:
            found.append(f"{group}=own")
        found.append(word)
    return found


def _grid_of_preset(loader: ConfigLoader, chosen: Sequence[str]) -> Mapping[str, Any]:
    composed = _template(loader, tuple(chosen)).composed
    params = OmegaConf.select(composed, "hydra.sweeper.params") or {}
    if not isinstance(params, Mapping):
        msg = f"hydra.sweeper.params must give a grid as KEY: VALUES; got {params}. Correct it."
        raise ValueError(msg)
    return params


_is_group = cache(is_group_with_options)  # which asks the disk


class _Single:
    """An override with a single value, parsed once for all points that share it.

    Attributes:
        is_value: whether it sets a plain value of an existing key, rather than choosing an option.
        may_name_class: whether it may bring a class into the config.
    """

    def __init__(self, override: Override, loader: ConfigLoader) -> None:
        self.override, self.text = override, override.input_line or ""
        key, is_hydras = override.key_or_group, override.is_hydra_override()
        is_set = override.type == OverrideType.CHANGE and override.package is None
        self.is_value = is_set and not is_hydras and not _is_group(loader, key)
        is_inside = "." in key and not is_hydras
        self.may_name_class = not (self.is_value or is_inside) or "_target_" in self.text
        self.path = key.split(".")
        self.value = _unquoted(override.value()) if self.is_value else None
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
        refer_to_run(self.composed)
        ours = _without_hydra(self.composed)
        _check_no_facts(ours)
        _check_nested(ours)
        self._plain: Any = OmegaConf.to_container(ours)
        self._names = _names_in(str(self._plain))
        self._lacks = any(missing_keys(self._plain))
        self._resolved = dict[tuple[str, ...], Config]()
        self._known = set[tuple[str, ...]]()

    def with_values(self, values: Sequence[_Single]) -> Config:
        targets = {
            v.override.key_or_group: str(v.value) for v in values if v.path[-1] == "_target_"
        }
        for value in values:
            known = (value.override.key_or_group, *targets.values())
            if known not in self._known:
                check_key(value.override, self._plain, targets)
                self._known.add(known)
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

    def lacks(self, single: _Single) -> bool:
        """Whether an override sets an argument of a class that the config does not list."""
        node = self._plain
        for name in single.path:
            if not isinstance(node, dict) or name not in node:
                return single.is_value
            node = node[name]
        return False

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
            or (not self.lacks(value) and "${" in str(reduce(getitem, value.path, self._plain)))
        ]
        return values if meant and self._lacks else meant

    def _with_meant(self, values: Sequence[_Single]) -> Config:
        """The config that Hydra composes with these values, cached for all points with them."""
        texts = tuple("++" * self.lacks(value) + value.text for value in values)
        if not texts and not self._names:
            return self._plain
        if texts not in self._resolved:
            self._resolved[texts] = plain_config(_compose(self._loader, [*self._chosen, *texts]))
        return self._resolved[texts]


@cache
def _template(loader: ConfigLoader, chosen: tuple[str, ...]) -> _Template:
    """The template of a choice, composed once per process: a tuner asks again for each trial."""
    return _Template(loader, chosen)


@cache
def _own_choices(loader: ConfigLoader, words: tuple[str, ...]) -> Sequence[str]:
    return user_choices(loader, _template(loader, words).composed, words)


def _compose(loader: ConfigLoader, overrides: Sequence[str]) -> DictConfig:
    typed = [word for word in overrides if not word.endswith("=[]")]  # the user's groups
    try:
        composed = compose_config(loader, CONFIG_NAME, overrides)
    except NOT_COMPOSED as error:
        raise ValueError(explain_error(error, typed)) from error
    except _HYDRAS_FAULTS as error:
        rule, why = "Hydra must be able to compose the config", "of which a part refers to itself"
        if isinstance(error, AssertionError):  # for a number where an option is chosen
            rule = "a group must be chosen by the name of an option"
            why = "which gives another value. Write GROUP=OPTION"
        elif not isinstance(error, RecursionError):
            why = f"where it fails: {error}. Correct it"
        msg = f"{rule}; got {' '.join(typed)}, {why}."
        raise ValueError(msg) from error
    for group in ("launcher", "sweeper"):
        if not OmegaConf.select(composed, f"hydra.{group}._target_"):
            msg = (
                f"hydra.{group} must be chosen; got {' '.join(typed)}. Write hydra/{group}=OPTION."
            )
            raise ValueError(msg)
    return composed


_DEEPEST = 50
#: What Hydra raises for odd values, beside its own errors.
_HYDRAS_FAULTS = (AssertionError, AttributeError, TypeError, KeyError, RecursionError, RuntimeError)


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """The overrides, read in Hydra's grammar; ValueError if any cannot be parsed."""
    parser = override_parser(loader)
    return [_parse_word(word, parser) for word in overrides]


def _parse_word(word: str, parser: OverridesParser) -> Override:
    key = word.partition("=")[0]
    if _nesting(word) > _DEEPEST:  # reading it, or copying it, would exceed Python's recursion
        msg = (
            f"{key} must have brackets nested at most {_DEEPEST} deep; got {word}. Nest them less."
        )
        raise ValueError(msg)
    try:
        (found,) = parser.parse_overrides([word])
    except HydraException as error:
        raise ValueError(explain_error(error)) from error
    except (ValueError, RecursionError) as error:  # thousands of digits or brackets
        raise ValueError(explain_unreadable(word, str(error))) from None
    if not found.key_or_group:
        raise ValueError(explain_unreadable(word, "it has no key"))
    if isinstance(found.value(), list | dict) or "." in found.key_or_group:
        check_group(found)
    return found


def _nesting(word: str) -> int:
    """How deep a value's brackets are nested, at most [count]."""
    steps = ((c in "[{(") - (c in "]})") for c in word)
    return max(itertools.accumulate(steps), default=0)


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
    _check_may_vary(override)
    key = override.get_key_element()
    if isinstance(override.value(), RangeSweep) and "sort(" in (override.input_line or ""):
        msg = (
            f"{key} must not sort a range, of which Hydra makes other values; got "
            f"{override.input_line}. Write the values, or a range in their order: range(72,23,-24)."
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


def _check_may_vary(override: Override) -> None:
    key = override.get_key_element()
    if override.is_hydra_override() or key in {*Incidental.model_fields} - LAYOUT_KEYS:
        msg = (
            f"{key} must be the same for all runs of a command; got {override.input_line}. Give "
            "it one value."
        )
        raise ValueError(msg)


def _unquoted(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Mapping):
        return {_unquoted(key): _unquoted(item) for key, item in value.items()}
    return [_unquoted(item) for item in value] if isinstance(value, list) else value
