"""Runs that may be compared: they differ only in batch, warmup, lr rule and seed."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from itertools import product
from typing import Any, Never

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sweeper.spec.identity import MICRO, scientific_part, with_spans
from sweeper.spec.sentences import did_you_mean, is_same_value, several


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The config recorded in a run's row.

    Attributes:
        settings: every setting by its dotted name, but the seed, which is a column.
        scientific: those that are not null and can change the numbers; 5 and 5.0 are the same.
        lr_rule: a rule with settings of its own, as `power exponent=0.7`; empty for a rule without.
        milestones: where the schedule lowers the rate, if that is said in epochs [epochs].
    """

    settings: dict[str, Any]
    scientific: dict[str, Any]
    lr_rule: str
    milestones: tuple[float, ...]


def stored_configs(runs: pd.DataFrame) -> list[StoredConfig]:
    """The config of each run; runs that differ in nothing but the seed share one."""
    places, configs = distinct_configs(runs)
    return [configs[place] for place in places]


def distinct_configs(runs: pd.DataFrame) -> tuple[NDArray[np.intp], list[StoredConfig]]:
    """The place of each run's config among the distinct ones, and these.

    Configs that differ in nothing but the seed are one: a folder of many seeds has few.
    """
    texts = runs["config_json"].fillna("{}").astype("str")
    seedless = texts.str.replace(_SEED, _NO_SEED, n=1, regex=True)
    has_another = seedless.str.count(_SEED) > 1  # in a group, where it is a setting
    places, distinct = pd.factorize(texts.where(has_another, seedless))
    configs = [_parse(text) for text in distinct]
    numbers: dict[str, set[float]] = {}
    for name, value in (pair for config in configs for pair in config.scientific.items()):
        if isinstance(value, float):
            numbers.setdefault(name, set()).add(value)
    near = {name: found for name, of in numbers.items() if (found := near_numbers(of))}

    def unify(settings: dict[str, Any]) -> dict[str, Any]:
        own = {name: value for name in near if isinstance(value := settings.get(name), float)}
        return settings | {name: near[name].get(value, value) for name, value in own.items()}

    return places, [
        replace(c, settings=unify(c.settings), scientific=unify(c.scientific)) if near else c
        for c in configs
    ]


#: Numbers of a setting that differ by less than this fraction are one setting: a rate that is read
#: off a module's steps misses its peak by some millionths, at each batch by others.
_NEAR = 1e-5


def near_numbers(values: Iterable[float]) -> dict[float, float]:
    """By each number that is nearly another, that of them with the fewest digits.

    Two whole numbers are counts, and never nearly equal.
    """
    groups: list[list[float]] = []
    for value in sorted(value for value in values if np.isfinite(value)):
        if not groups or value - groups[-1][0] > _NEAR * abs(value):
            groups.append([])
        groups[-1].append(value)
    pairs = [(value, min(of, key=lambda n: len(repr(float(n))))) for of in groups for value in of]
    return {n: one for n, one in pairs if n != one and not float(n).is_integer()}


def unify_near(runs: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Runs in which numbers of these columns that are nearly equal are equal."""
    floats = [n for n in columns if n in runs and pd.api.types.is_float_dtype(runs[n])]
    near = {name: found for name in floats if (found := near_numbers(runs[name].unique()))}
    return runs.assign(**{name: runs[name].replace(of) for name, of in near.items()})


def with_known_spans(settings: dict[str, Any], micro_batch: float, ranks: float) -> dict[str, Any]:
    """Settings with the number of examples that BatchNorm or the loss spans, where it is known."""
    if pd.isna(micro_batch):
        return settings
    return with_spans(settings, int(micro_batch), 1 if pd.isna(ranks) else int(ranks))


_SEED, _NO_SEED = r'"seed": \d+', '"seed": 0'


@lru_cache(maxsize=2**16)
def _parse(text: str) -> StoredConfig:
    config = {name: value for name, value in json.loads(text).items() if name != "seed"}
    leaves = _leaves(scientific_part(config))
    scientific = {name: value for name, value in leaves if value is not None}
    settings = dict(_leaves(config))
    is_in_epochs = settings.get("warmup_unit") is None
    milestones = settings.get("schedule.milestones") if is_in_epochs else ()
    own = [
        f"{name.partition('.')[2]}={value}"
        for name, value in settings.items()
        if name.startswith("lr_rule.") and name != "lr_rule.name"
    ]
    return StoredConfig(
        settings=settings,
        scientific=scientific,
        lr_rule=" ".join([str(settings["lr_rule.name"]), *own]) if own else "",
        milestones=tuple(map(float, milestones or ())),
    )


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


#: Config keys that a figure draws against or averages over.
AXES = ("batch", "warmup", "lr_rule", "seed")

#: Columns that tell comparable runs from others and explain them.
COLUMNS = (
    "global_batch", "warmup_epochs", "lr_rule", "seed", "model", "data", "data_about", "epochs",
    "val_accuracy", "val_loss", "metric_name", "code_hash", "resumed_code", "config_json",
    "micro_batch", "world_size", "started_at", "tokens_per_example", "metric", "branch",
)  # fmt: skip


def example_unit(runs: pd.DataFrame) -> str:
    """What a batch counts: examples, or sequences of a text if all are equally long."""
    lengths = runs["tokens_per_example"].unique() if "tokens_per_example" in runs else ()
    if len(lengths) != 1 or pd.isna(lengths[0]):
        return "examples"
    return f"sequences of {lengths[0]:,.0f} tokens"


#: Bytes of a name; a longer name is cut and ends with a hash of what it stood for.
_LONGEST, _HASH = 80, 8


def warmup_unit(runs: pd.DataFrame) -> str:
    """What the column `warmup_epochs` of grouped runs counts: epochs, or as the configs say."""
    units = runs["warmup_unit"].fillna("epochs") if "warmup_unit" in runs else ["epochs"]
    return " or ".join(sorted(set(units)))


def file_name(text: str, stands_for: str = "") -> str:
    """A text as part of a file's name, with _ for all but letters, digits, = . - and _.

    The name ends with a hash of what it stands for, if that is given, or if the text is long.
    """
    name = re.sub(r"[^\w=.-]", "_", text)
    if not stands_for and len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.sha256((stands_for or text).encode()).hexdigest()[:_HASH]
    start = name.encode()[: _LONGEST - _HASH - 1].decode(errors="ignore")
    return f"{start}-{digest}".lstrip("-")


def file_names(texts: Mapping[str, str]) -> dict[str, str]:
    """Parts of file names for texts, by their keys: no two are the same."""
    times = Counter(map(file_name, texts.values()))
    return {
        key: file_name(text, key if times[file_name(text)] > 1 else "")
        for key, text in texts.items()
    }


@dataclass(frozen=True, slots=True)
class ComparableRuns:
    """Runs that differ only in batch, warmup, lr rule and seed.

    Attributes:
        runs: rows of the runs table.
        title: data set, model and epochs, in words.
        about: what the data set is, and how these runs differ from the others in the folder.
        name: for file names, how they differ from the runs that were begun first; empty for these,
            so that the names stay when others arrive.
    """

    runs: pd.DataFrame
    title: str
    about: str
    name: str

    def __getitem__(self, key: object) -> Never:
        """Refuse what is done with a frame."""
        msg = "an estimator must be given a frame; got a group of runs. Write its .runs."
        raise TypeError(msg)


def takes_frame(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A function of comparable runs that takes a frame of them too.

    ValueError for a frame of several groups, or of none.
    """

    @wraps(draw)
    def draw_either(runs: ComparableRuns | pd.DataFrame, *args: Any, **settings: Any) -> Any:
        if isinstance(runs, pd.DataFrame):
            groups = group_comparable(runs) if len(runs) else []
            if len(groups) != 1:
                msg = (
                    f"runs must be one group of comparable runs; got {len(groups)} groups. Give "
                    "one: analysis.group_comparable(runs)[0]."
                )
                raise ValueError(msg)
            (runs,) = groups
        return draw(runs, *args, **settings)

    return draw_either


def group_comparable(runs: pd.DataFrame, axes: tuple[str, ...] = AXES) -> list[ComparableRuns]:
    """Group runs by everything in their configs but the axes.

    The axes are config keys, or their first parts, in which comparable runs may differ.

    Returns:
        The largest group first, of equal ones the longest trained. If warmups are given in steps or
        examples, `warmup_epochs` is in these, so that it is the same at all batches: `warmup_unit`.
    """
    runs = unify_near(runs, ("base_lr", "peak_lr", "warmup_epochs"))
    places, configs = distinct_configs(runs)
    if any(rules := [c.lr_rule for c in configs]):
        shown = [rules[place] or name for place, name in zip(places, runs["lr_rule"], strict=True)]
        runs = runs.assign(lr_rule=pd.Series(shown, runs.index, dtype="str"))
    if any(units := [c.settings.get("warmup_unit") for c in configs]):
        given = [c.settings["warmup"] if u else None for c, u in zip(configs, units, strict=True)]
        given = pd.Series(given, dtype=float).take(places).set_axis(runs.index)
        units = pd.Series(units).take(places).set_axis(runs.index)
        runs = runs.assign(warmup_epochs=given.fillna(runs["warmup_epochs"]), warmup_unit=units)
    settings = [
        {n: v for n, v in c.scientific.items() if n not in axes and n.split(".")[0] not in axes}
        for c in configs
    ]
    texts = list(map(_key, settings))
    by_key = dict(zip(texts, settings, strict=True))
    keys = pd.Series(pd.Categorical(texts).take(places), runs.index)
    if any(own.get(name) == "micro" for own in by_key.values() for name in MICRO):
        layout = runs[["micro_batch", "world_size"]].assign(key=keys)
        kinds = layout.drop_duplicates()
        known = [with_known_spans(by_key[k], *of) for *of, k in kinds.itertuples(index=False)]
        by_key |= {_key(spanned): spanned for spanned in known}
        spanned = layout.merge(kinds.assign(spanned=[*map(_key, known)]), "left")["spanned"]
        spanned = spanned.set_axis(runs.index)
        differ = _differ_in_spans(spanned, keys, runs["global_batch"])
        keys = keys.astype("str").mask(differ, spanned)
        by_key = {key: by_key[key] for key in keys.unique()}
    differing = find_differing_keys(list(by_key.values()))
    of_keys = runs.groupby(keys, sort=False, observed=True)
    trained = (runs["steps"] * runs["global_batch"]).fillna(0)
    groups = sorted(of_keys, key=lambda g: (len(g[1]), trained[g[1].index].max()), reverse=True)
    found = {
        str(key): _describe(rows, {name: by_key[str(key)].get(name) for name in differing})
        for key, rows in groups
    }
    earliest = str(keys.iloc[find_earliest(runs)])
    first = by_key[earliest]
    names = file_names({
        key: _name(by_key[key], first, group.runs.iloc[0], found[earliest].runs.iloc[0])
        for key, group in found.items()
    })  # fmt: skip
    return [replace(group, name=names[key]) for key, group in found.items()]


def _key(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _differ_in_spans(spanned: pd.Series, keys: pd.Series, batches: pd.Series) -> pd.Series:
    """Whether runs belong to a group in which a batch has micro-batches of several sizes.

    If BatchNorm or the loss spans a micro-batch, these are different experiments. Sizes that follow
    from the batch are not distinguished, as there is nothing else to compare at that batch.
    """
    several_sizes = spanned.groupby([keys, batches], observed=True).transform("nunique") > 1
    return keys.isin(keys[several_sizes])


def find_differing_keys(settings: list[dict[str, Any]]) -> list[str]:
    """Keys in which settings differ, but no class where a name already tells the groups apart."""
    names = dict.fromkeys(name for setting in settings for name in setting)

    def count(*of: str) -> int:
        return len({repr([setting.get(name) for name in of]) for setting in settings})

    def is_named(target: str) -> bool:
        name = f"{target.rpartition('.')[0]}.name"
        return name in names and count(name) == count(name, target)

    return [n for n in names if count(n) > 1 and not (n.endswith("._target_") and is_named(n))]


def _describe(runs: pd.DataFrame, differing: dict[str, Any]) -> ComparableRuns:
    first = runs.iloc[0]
    title = f"{first['data']}, {first['model']}, {_describe_length(first)}"
    shown = {name: value for name, value in differing.items() if value is not None}
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    sources = {*runs["code_hash"].dropna(), *runs["resumed_code"].dropna()}
    versions = len({digest for hashes in sources for digest in str(hashes).split(",")})
    changed = f"made with {versions} versions of the project's sources" if versions > 1 else ""
    parts = [about, *(f"{n}={v}" for n, v in shown.items()), changed]
    about = "; ".join(filter(None, parts))
    return ComparableRuns(runs=runs, title=title, about=about, name="")


def _describe_length(run: "pd.Series[Any]") -> str:
    """How long a run trains, in the unit that it is said in."""
    config = json.loads(str(run["config_json"]))
    for unit in ("step", "example"):
        if (number := config.get(f"{unit}s")) is not None:
            return several(number, unit)
    return several(run["epochs"], "epoch")


def _name(
    settings: dict[str, Any], first: dict[str, Any], row: "pd.Series[Any]", its: "pd.Series[Any]"
) -> str:
    """How settings, of a run's row, differ from others; the data and model in a word."""
    words = {name: row[name] for name in ("data", "model") if str(row[name]) != str(its[name])}
    differing = find_differing_keys([first, settings])
    values = words | {n: settings.get(n) for n in differing if n.split(".")[0] not in words}
    keys = [name.removesuffix(".name").rpartition(".")[2] for name in values]
    shown = ("null" if value is None else value for value in values.values())
    return "-".join(f"{key}={value}" for key, value in zip(keys, shown, strict=True))


def find_earliest(runs: pd.DataFrame) -> int:
    """The place of the run that was begun first; of the first row if that is not known."""
    if "started_at" not in runs:
        return 0
    starts = pd.to_datetime(runs["started_at"], utc=True).reset_index(drop=True)
    return int(starts.sort_values(kind="stable").index[0])


def select_runs_where(runs: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """The runs that meet all conditions: `KEY=VALUE`, or `KEY=VALUE,VALUE` for either.

    A key is a column, a word of the command line, or a setting's dotted name; `KEY=null` takes
    the runs without it.

    Raises:
        ValueError: if no run has the key, or none is left.
    """
    for condition in conditions:
        key, _, wanted = condition.partition("=")
        column = {"batch": "global_batch", "warmup": "warmup_epochs"}.get(key, key)
        columns = runs[column] if column in runs else [None] * len(runs)
        settings = [config.settings for config in stored_configs(runs)]
        known = [
            {str(v).removesuffix(".0") for v in (value, own.get(key), own.get(f"{key}.name"))}
            - {"None", "nan"}
            or {"null"}
            for value, own in zip(columns, settings, strict=True)
        ]
        there = sorted(set().union(*known) - {"null"})
        if not there:
            names = {*map(str, runs), *(name for own in settings for name in own)}
            like = did_you_mean(key, sorted(names))
            msg = f"--where must give a column or setting that runs have; got {condition}. {like}"
            raise ValueError(msg.rstrip())
        is_kept = [any(is_same_value(*p) for p in product(v, wanted.split(","))) for v in known]
        if not any(is_kept):
            msg = f"--where must leave runs; got {condition}, the runs have {', '.join(there)}."
            raise ValueError(msg)
        runs = runs[is_kept]
    return runs.reset_index(drop=True)
