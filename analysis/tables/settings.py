"""Settings that a study tries at each batch, so that each batch is judged at its best."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analysis.tables.comparable_runs import AXES, ComparableRuns, group_comparable, stored_configs

#: Keys, or groups of keys, whose numbers a study tunes; other keys make it another study.
_TUNED = ("base_lr", "label_smoothing", "gradient_clip", "ema_decay", "optimizer", "module",
          "lr_rule")  # fmt: skip

#: Columns of runs that keys of the command come to, by the key.
_COLUMNS = {"base_lr": "peak_lr", "lr_rule": "peak_lr"}


def comparable_settings(
    runs: pd.DataFrame, axes: Sequence[str] = AXES
) -> tuple[pd.DataFrame, list[str]]:
    """As `group_settings`, without words on the group."""
    group, columns = group_settings(runs, axes)
    return group.runs, columns


def group_settings(
    runs: pd.DataFrame, axes: Sequence[str] = AXES
) -> tuple[ComparableRuns, list[str]]:
    """The largest group of runs that differ only in the axes and tuned settings.

    Returns:
        The runs, with a column for each further setting that is tuned; and the columns of the
        settings that vary at a batch: the peak rate, the warmup, and these.
    """
    configs = stored_configs(runs)
    numbers = {
        name
        for config in configs
        for name, value in config.scientific.items()
        if name.split(".")[0] in _TUNED and type(value) in (int, float)
    }
    group = group_comparable(runs, (*axes, *sorted(numbers)))[0]
    found = group.runs
    further = sorted(name for name in numbers if name.split(".")[0] not in _COLUMNS)
    of_runs = dict(zip(runs.index, configs, strict=True))
    for name in further:
        values = [of_runs[i].settings.get(name) for i in found.index]
        if len(set(values)) > 1:
            found = found.assign(**{name: pd.Series(values, found.index, dtype=float)})
    names = ["peak_lr", "warmup_epochs", *(name for name in further if name in found)]
    if found["peak_lr"].isna().all():
        names = ["base_lr", *names[1:]]
    varied = found.groupby("global_batch")[names].nunique().max()
    return replace(group, runs=found), [name for name in names if varied[name] > 1]
