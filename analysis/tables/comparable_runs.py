"""Runs that may be compared: a study differs inside only in batch, warmup, lr rule and seed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from sweeper.spec.identity import scientific_part

#: Config keys that a figure draws against or averages over.
AXES = ("batch", "warmup", "lr_rule", "seed")

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
    configs = [json.loads(text) for text in runs["config_json"].fillna("{}")]
    settings = [_setting(config, axes) for config in configs]
    rules = [_rule(config.get("lr_rule") or {}) for config in configs]
    shown = [rule or name for rule, name in zip(rules, runs["lr_rule"], strict=True)]
    runs = runs.assign(lr_rule=pd.Series(shown, index=runs.index, dtype="str"))
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


def _setting(config: dict[str, Any], axes: tuple[str, ...]) -> dict[str, Any]:
    """The scientific leaves of a config but the axes; 5 and 5.0 are one value."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in flat(scientific_part(config))
        if value is not None and name.split(".")[0] not in axes
    }


def _rule(group: dict[str, Any]) -> str:
    """A rule with settings of its own, such as `power exponent=0.7`; empty for one without."""
    settings = [f"{name}={value}" for name, value in group.items() if name != "name"]
    return " ".join([str(group["name"]), *settings]) if settings else ""


def _differing(settings: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [n for n in names if len({repr(s.get(n)) for s in settings}) > 1]


def _study(runs: pd.DataFrame, differing: dict[str, Any]) -> Study:
    first = runs.iloc[0]
    title = f"{first['data']}, {first['model']}, {first['epochs']} epochs"
    shown = [f"{name}={value}" for name, value in differing.items() if value is not None]
    about = "" if pd.isna(first["data_about"]) else str(first["data_about"])
    about = "; ".join([about, *shown]).strip("; ")
    return Study(runs=runs, title=title, about=about, name=_file_name(shown))


def _file_name(shown: list[str]) -> str:
    last_parts = [name.split(".")[-1] + "=" + value for name, _, value in _split(shown)]
    text = "-".join(last_parts)
    return "".join(c if c.isalnum() or c in "=.-_" else "_" for c in text)[:80]


def _split(shown: list[str]) -> list[tuple[str, str, str]]:
    return [text.partition("=") for text in shown]
