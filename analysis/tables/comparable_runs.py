"""Runs that may be compared: they differ only in batch, warmup, lr rule and seed."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.tables.configs import stored_configs
from sweeper.spec.sentences import several

#: Config keys that a figure draws against or averages over.
AXES = ("batch", "warmup", "lr_rule", "seed")

#: Columns that tell comparable runs from others and explain them.
COLUMNS = (
    "global_batch", "warmup_epochs", "lr_rule", "seed", "model", "data", "data_about", "epochs",
    "val_accuracy", "val_loss", "metric_name", "code_hash", "resumed_code", "config_json",
)  # fmt: skip


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
    keys = pd.Series([json.dumps(s, sort_keys=True) for s in settings], index=runs.index)
    by_key = dict(zip(keys, settings, strict=True))
    differing = _differing(list(by_key.values()))
    groups = sorted(runs.groupby(keys, sort=False), key=lambda pair: -len(pair[1]))
    found = [
        _describe(rows, {name: by_key[str(key)].get(name) for name in differing})
        for key, rows in groups
    ]
    times = Counter(group.name for group in found)
    return [
        replace(group, name=f"{group.name}-{i}") if times[group.name] > 1 else group
        for i, group in enumerate(found)
    ]


def _differing(settings: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [n for n in names if len({repr(s.get(n)) for s in settings}) > 1]


def _describe(runs: pd.DataFrame, differing: dict[str, Any]) -> ComparableRuns:
    first = runs.iloc[0]
    title = f"{first['data']}, {first['model']}, {several(first['epochs'], 'epoch')}"
    shown = {name: value for name, value in differing.items() if value is not None}
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    parts = [about, *(f"{n}={v}" for n, v in shown.items()), _of_sources(runs)]
    about = "; ".join(filter(None, parts))
    name = "-".join(f"{n.rpartition('.')[2]}={v}" for n, v in shown.items())
    name = "".join(c if c.isalnum() or c in "=.-_" else "_" for c in name)[:80]
    return ComparableRuns(runs=runs, title=title, about=about, name=name)


def _of_sources(runs: pd.DataFrame) -> str:
    """That the user's own sources changed between these runs, or within one; empty if not."""
    found = pd.concat([runs["code_hash"], runs["resumed_code"]]).dropna()
    num = len({digest for hashes in found for digest in str(hashes).split(",")})
    return f"made with {num} versions of the project's sources" if num > 1 else ""
