"""Runs that may be compared: a study differs inside only in batch, warmup, lr rule and seed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

#: Config keys that a figure draws against or averages over.
AXES = ("batch", "warmup", "lr_rule", "seed")

#: Config keys that change where a run runs, and nothing of what it computes.
PLACES = (
    "devices",
    "num_nodes",
    "accelerator",
    "threads",
    "micro_batch",
    "micro_batch_limit",
    "timeout_s",
    "results",
    "data.about",
    "data.root",
)

#: Columns that tell studies apart and explain them.
COLUMNS = (
    "global_batch",
    "warmup_epochs",
    "lr_rule",
    "seed",
    "model",
    "data",
    "data_about",
    "epochs",
    "val_accuracy",
    "val_loss",
    "num_train_examples",
    "optimizer",
    "base_lr",
    "config_json",
)


@dataclass(frozen=True, slots=True)
class Study:
    """Runs that differ only in batch, warmup, lr rule and seed.

    Attributes:
        runs: rows of the runs table.
        title: data set, model and epochs, in words.
        about: what the data set is, and how the study differs from the others in the folder.
        name: for file names; empty if the folder holds one study.
    """

    runs: pd.DataFrame
    title: str
    about: str
    name: str


def studies(runs: pd.DataFrame, axes: tuple[str, ...] = AXES) -> list[Study]:
    """Split runs into studies by everything in their configs but the axes.

    Args:
        runs: rows of the runs table; uses `config_json`, `data`, `model`, `epochs`, `data_about`.
        axes: config keys, or their first parts, in which the runs of a study may differ.

    Returns:
        The largest study first.
    """
    settings = [_setting(text, axes) for text in runs["config_json"].fillna("{}")]
    keys = pd.Series([json.dumps(s, sort_keys=True) for s in settings], index=runs.index)
    by_key = dict(zip(keys, settings, strict=True))
    groups = sorted(runs.groupby(keys, sort=False), key=lambda pair: -len(pair[1]))
    differing = _differing(list(by_key.values()))
    found = [
        _study(group, {name: by_key[str(key)].get(name) for name in differing})
        for key, group in groups
    ]
    return _with_distinct_names(found)


def flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested config with their dotted names."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _with_distinct_names(found: list[Study]) -> list[Study]:
    names = [study.name for study in found]
    return [
        replace(study, name=f"{study.name}-{i}") if names.count(study.name) > 1 else study
        for i, study in enumerate(found)
    ]


def _setting(text: str, axes: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: value
        for name, value in flat(json.loads(text))
        if name not in PLACES and name.split(".")[0] not in axes
    }


def _differing(settings: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [n for n in names if len({repr(s.get(n)) for s in settings}) > 1]


def _study(runs: pd.DataFrame, differing: dict[str, Any]) -> Study:
    first = runs.iloc[0]
    title = f"{first['data']}, {first['model']}, {first['epochs']} epochs"
    shown = [f"{name}={value}" for name, value in differing.items() if value is not None]
    about = "; ".join([str(first["data_about"] or ""), *shown]).strip("; ")
    return Study(runs=runs, title=title, about=about, name=_file_name(shown))


def _file_name(shown: list[str]) -> str:
    last_parts = [name.split(".")[-1] + "=" + value for name, _, value in _split(shown)]
    text = "-".join(last_parts)
    return "".join(c if c.isalnum() or c in "=.-_" else "_" for c in text)[:80]


def _split(shown: list[str]) -> list[tuple[str, str, str]]:
    return [text.partition("=") for text in shown]
