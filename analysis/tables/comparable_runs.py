"""Runs that may be compared: they differ only in batch, warmup, lr rule and seed."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from sweeper.spec.identity import scientific_part, with_spans
from sweeper.spec.sentences import several


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The config recorded in a run's row.

    Attributes:
        settings: every setting by its dotted name.
        scientific: those that are not null and can change the numbers; 5 and 5.0 are the same.
        lr_rule: a rule with settings of its own, as `power exponent=0.7`; empty for a rule without.
        milestones: where the schedule lowers the rate [epochs].
    """

    settings: dict[str, Any]
    scientific: dict[str, Any]
    lr_rule: str
    milestones: tuple[float, ...]


def stored_configs(runs: pd.DataFrame) -> list[StoredConfig]:
    """The config of each run."""
    return [_parse(text) for text in runs["config_json"].fillna("{}")]


def with_known_spans(settings: dict[str, Any], micro_batch: float, ranks: float) -> dict[str, Any]:
    """Settings with the number of examples that BatchNorm or the loss spans, where it is known."""
    if pd.isna(micro_batch):
        return settings
    return with_spans(settings, int(micro_batch), 1 if pd.isna(ranks) else int(ranks))


def _parse(text: str) -> StoredConfig:
    try:
        config: Any = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        msg = f"config_json of a row must be a JSON object; got {text[:60]}. Restore its table."
        raise ValueError(msg)
    leaves = _leaves(scientific_part(config))
    scientific = {name: value for name, value in leaves if value is not None}
    settings = dict(_leaves(config))
    own = [
        f"{name.partition('.')[2]}={value}"
        for name, value in settings.items()
        if name.startswith("lr_rule.") and name != "lr_rule.name"
    ]
    return StoredConfig(
        settings=settings,
        scientific=scientific,
        lr_rule=" ".join([str(settings["lr_rule.name"]), *own]) if own else "",
        milestones=tuple(float(m) for m in settings.get("schedule.milestones") or ()),
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
    "micro_batch", "world_size",
)  # fmt: skip


#: Bytes of a name; a longer name is cut and ends with a hash of what it stood for.
_LONGEST, _HASH = 80, 8


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
        name: for file names; empty if all runs in the folder are comparable.
    """

    runs: pd.DataFrame
    title: str
    about: str
    name: str


def group_comparable(runs: pd.DataFrame, axes: tuple[str, ...] = AXES) -> list[ComparableRuns]:
    """Group runs by everything in their configs but the axes.

    The axes are config keys, or their first parts, in which comparable runs may differ.

    Returns:
        The largest group first.
    """
    configs = stored_configs(runs)
    shown = [c.lr_rule or name for c, name in zip(configs, runs["lr_rule"], strict=True)]
    runs = runs.assign(lr_rule=pd.Series(shown, index=runs.index, dtype="str"))
    settings = [
        {name: value for name, value in c.scientific.items() if name.split(".")[0] not in axes}
        for c in configs
    ]
    keys = _keys(settings, runs)
    layouts = zip(settings, runs["micro_batch"], runs["world_size"], strict=True)
    spanned = [with_known_spans(*layout) for layout in layouts]
    if any(differ := _differ_in_spans(_keys(spanned, runs), keys, runs["global_batch"])):
        both = zip(settings, spanned, differ, strict=True)
        settings = [known if is_split else s for s, known, is_split in both]
        keys = _keys(settings, runs)
    by_key = dict(zip(keys, settings, strict=True))
    differing = _differing_keys(list(by_key.values()))
    groups = sorted(runs.groupby(keys, sort=False), key=lambda pair: -len(pair[1]))
    found = {
        str(key): _describe(rows, {name: by_key[str(key)].get(name) for name in differing})
        for key, rows in groups
    }
    names = file_names({key: group.name for key, group in found.items()})
    return [replace(group, name=names[key]) for key, group in found.items()]


def _keys(settings: list[dict[str, Any]], runs: pd.DataFrame) -> pd.Series:
    return pd.Series([json.dumps(s, sort_keys=True) for s in settings], index=runs.index)


def _differ_in_spans(spanned: pd.Series, keys: pd.Series, batches: pd.Series) -> pd.Series:
    """Whether runs belong to a group in which a batch has micro-batches of several sizes.

    If BatchNorm or the loss spans a micro-batch, these are different experiments. Sizes that follow
    from the batch are not distinguished, as there is nothing else to compare at that batch.
    """
    several_sizes = spanned.groupby([keys, batches]).transform("nunique") > 1
    return keys.isin(keys[several_sizes])


def _differing_keys(settings: list[dict[str, Any]]) -> list[str]:
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
    title = f"{first['data']}, {first['model']}, {several(first['epochs'], 'epoch')}"
    shown = {name: value for name, value in differing.items() if value is not None}
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    sources = pd.concat([runs["code_hash"], runs["resumed_code"]]).dropna()
    versions = len({digest for hashes in sources for digest in str(hashes).split(",")})
    changed = f"made with {versions} versions of the project's sources" if versions > 1 else ""
    parts = [about, *(f"{n}={v}" for n, v in shown.items()), changed]
    about = "; ".join(filter(None, parts))
    keys = [name.removesuffix(".name").rpartition(".")[2] for name in shown]
    name = "-".join(f"{key}={v}" for key, v in zip(keys, shown.values(), strict=True))
    return ComparableRuns(runs=runs, title=title, about=about, name=name)
