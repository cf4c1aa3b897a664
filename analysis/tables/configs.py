"""The configs that runs were trained with, as read from `config_json`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sweeper.spec.identity import scientific_part, with_spans


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The config recorded in a run's row.

    Attributes:
        settings: every setting by its dotted name.
        scientific: those that are not null and can change the numbers; 5 and 5.0 are one value.
        lr_rule: a rule with settings of its own, as `power exponent=0.7`; empty for one without.
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
