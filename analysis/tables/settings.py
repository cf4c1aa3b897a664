"""Settings that a study tries at each batch, so that each batch is judged at its best."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.tables.comparable_runs import (
    AXES,
    ComparableRuns,
    StoredConfig,
    find_differing_keys,
    group_comparable,
    stored_configs,
)
from analysis.tables.metric import Measured
from analysis.tables.which_runs import LENGTHS
from sweeper.spec.sentences import several

#: Keys, or groups of keys, whose numbers a study tunes; other keys make it another study.
_TUNED = ("base_lr", "label_smoothing", "gradient_clip", "ema_decay", "optimizer", "module",
          "lr_rule")  # fmt: skip

#: Columns of runs that keys of the command come to, by the key.
_COLUMNS = {"base_lr": "peak_lr", "lr_rule": "peak_lr"}

#: A module's rate is read off its steps, which may miss its peak by less than this fraction.
_OFF_PEAK = 0.01

#: Groups of runs that are left out, and that are named.
_MOST_NAMED = 3


def comparable_settings(
    runs: pd.DataFrame, axes: Sequence[str] = AXES
) -> tuple[pd.DataFrame, list[str]]:
    """As `group_settings`, without words on the group."""
    group, columns = group_settings(runs, axes)
    return group.runs, columns


def runs_of_lengths(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """As `comparable_settings` of runs of any length, with `data_seen`, their length [examples].

    Lengths in epochs, steps and examples are not compared: those of the most frequent unit.
    """
    found, columns = comparable_settings(runs, LENGTHS)
    own = [config.settings for config in stored_configs(found)]
    given = pd.DataFrame(own, index=found.index).reindex(columns=["examples", "steps", "epochs"])
    ones = pd.Series(1.0, index=found.index)
    each = pd.concat([ones, found["global_batch"], found["num_train_examples"]], axis=1)
    in_examples = (given.astype(float) * each.to_numpy(float)).bfill(axis=1).iloc[:, 0]
    kind = given.notna().idxmax(axis=1)
    return found.assign(data_seen=in_examples)[kind.eq(kind.mode().iloc[0])], columns


def group_settings(
    runs: pd.DataFrame, axes: Sequence[str] = AXES
) -> tuple[ComparableRuns, list[str]]:
    """The largest group of runs that differ only in the axes and tuned settings.

    Returns:
        The runs, with a column for each further setting that is tuned, and `base_lr` as it was
        typed; and the columns of the settings that vary at a batch: the peak rate, the warmup, and
        these.
    """
    configs = stored_configs(runs)
    numbers = _find_tuned_numbers(configs)
    group = group_comparable(runs, (*axes, *numbers))[0]
    found = group.runs
    of_runs = dict(zip(runs.index, configs, strict=True))
    own = [of_runs[i] for i in found.index]
    rate = find_rate_key(found, own)
    found = found.assign(base_lr=read_rates(found, own, rate))
    further = [n for n in numbers if n != rate and n.split(".")[0] not in _COLUMNS]
    for name in further:
        values = _values(own, name)
        if len(values.unique()) > 1:
            found = found.assign(**{name: values.to_numpy()})
    names = ["peak_lr", "warmup_epochs", *(name for name in further if name in found)]
    if found["peak_lr"].isna().all():
        names = ["base_lr", *names[1:]]
    varied = found.groupby("global_batch")[names].nunique().max()
    return replace(group, runs=found), [name for name in names if varied[name] > 1]


def _find_tuned_numbers(configs: Sequence[StoredConfig]) -> list[str]:
    """Settings of these configs that a study may tune."""
    return sorted({
        name
        for config in configs
        for name, value in config.scientific.items()
        if name.split(".")[0] in _TUNED and type(value) in (int, float)
    })  # fmt: skip


def find_rate_key(runs: pd.DataFrame, configs: Sequence[StoredConfig] | None = None) -> str:
    """The key that the learning rate of these runs was typed as.

    It is `base_lr`, or the setting of a user's module that their rates equal: one rate, not two
    settings.
    """
    configs = configs or stored_configs(runs)
    if any(config.settings.get("base_lr") is not None for config in configs):
        return "base_lr"
    rates = runs["base_lr"].to_numpy(float)
    names = {n for c in configs for n in c.scientific if n.split(".")[0] in ("module", "optimizer")}
    for name in sorted(names, key=lambda name: (not name.endswith("lr"), name)):
        values = _values(configs, name).to_numpy()
        is_known = ~np.isnan(values) & ~np.isnan(rates)
        is_same = np.abs(values - rates) <= _OFF_PEAK * np.abs(rates)
        if is_known.any() and is_same[is_known].all():
            return name
    return "base_lr"


def read_rates(runs: pd.DataFrame, configs: Sequence[StoredConfig], key: str) -> pd.Series:
    """The rate of each run as it was typed, with `find_rate_key` as the key."""
    typed = _values(configs, key).set_axis(runs.index)
    return runs["base_lr"] if key == "base_lr" else typed.fillna(runs["base_lr"])


def _values(configs: Sequence[StoredConfig], name: str) -> pd.Series:
    values = [config.settings.get(name) for config in configs]
    return pd.to_numeric(pd.Series(values, dtype="object"), errors="coerce").astype(float)


def describe_choice(measured: Measured, group: ComparableRuns) -> str:
    """Which of the runs an answer uses, and the words that ask about the others; empty if all."""
    runs, given = measured.runs, measured.runs_with_metric
    others = runs[~runs.index.isin(given.index)]
    branches = others[others["branch"].notna()]
    rest = given[~given.index.isin(group.runs.index)]
    axes = (*AXES, *_find_tuned_numbers(stored_configs(rest)))
    left = [each.runs for each in group_comparable(rest, axes)] if len(rest) else []
    parts = [
        f"{several(len(own), 'run')}{_name_conditions(own.index, given)}"
        for own in left[:_MOST_NAMED]
    ]
    if more := sum(map(len, left[_MOST_NAMED:])):
        parts.append(f"{several(more, 'run')} of other groups")
    if len(branches):
        folders = " ".join(dict.fromkeys(branches["results"].astype(str)))
        compared = f"`sweeper analysis branches {folders}` compares them"
        parts.append(f"{several(len(branches), 'branch')} ({compared})")
    if count := len(others) - len(branches):
        parts.append(f"{several(count, 'run')} with another metric than {measured.metric.name}")
    about = f"This is from {len(group.runs)} of {len(runs)} runs: {group.title}."
    return f"{about} Left out: {'; '.join(parts)}." if parts else ""


def _name_conditions(wanted: "pd.Index[int]", runs: pd.DataFrame) -> str:
    """The fewest conditions of `--where` that take the wanted runs alone, in brackets.

    Empty if none do.
    """
    configs = stored_configs(runs)
    keys = [n for n in find_differing_keys([c.scientific for c in configs]) if n not in AXES]
    columns = {name: [config.settings.get(name) for config in configs] for name in keys}
    shown = pd.DataFrame({**runs[["data", "model"]].to_dict("list"), **columns}, runs.index)
    shown = shown.astype("object").where(shown.notna(), "null").astype("str")
    shown = shown.replace(r"\.0$", "", regex=True)
    mine, others, found = shown.loc[wanted], shown.drop(wanted), list[str]()
    names = [n for n in shown if len({*mine[n]}) == 1 and "," not in mine[n].iloc[0]]
    names.sort(key=lambda name: mine[name].iloc[0] == "null")  # a column may fill what is null
    while len(others):
        same = {name: others[others[name] == mine[name].iloc[0]] for name in names}
        name = min(names, key=lambda name: len(same[name]))  # the model is one of them
        if len(same[name]) == len(others):
            return ""
        others = same[name]
        found.append(f"--where {name}={mine[name].iloc[0]}")
    return f" ({' '.join(found)})"
