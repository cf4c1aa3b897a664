"""What makes a comparison worthless before any statistics: checks on the runs themselves."""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import cast

import pandas as pd

from analysis.tables.comparable_runs import stored_configs, unify_near, warmup_unit
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.which_runs import ended_runs
from sweeper.spec.sentences import several

#: Columns whose values make two runs different arms.
ARM = ["global_batch", "warmup_epochs", "lr_rule", "base_lr"]

#: Columns in which arms that are compared must be alike, with their names in words.
ALIKE = {
    "bn_span": "BatchNorm span",
    "world_size": "ranks",
    "code_hash": "code",
    "resumed_code": "code at the start",
    "git_commit": "commit",
    "data": "data",
    "num_train_examples": "training examples",
}


#: What `doubts` reads of the runs table, besides the metric.
COLUMNS = (*ARM, *ALIKE, "optimizer", "outcome", "lr_series_hash")


#: Reasons in a caption.
_MOST_REASONS = 3


def check_validity(runs: pd.DataFrame, metric: Metric = ACCURACY) -> list[str]:
    """Look for what these runs cannot support.

    Uses the arm's columns, those that arms must have in common, `optimizer`, `outcome`, `seed`,
    `lr_series_hash`, `steps_per_epoch`, `steps`, `epochs`, `config_json` and the metric of
    comparable runs.

    Returns:
        Refusals, then remarks, in words.
    """
    runs = ended_runs(runs)
    refusals = [*_find_incomparable(runs)]
    for batch, rule, warmup in upper_edges(runs, metric):
        refusals.append(
            f"At batch {batch:,} ({rule}) the best warmup is {warmup:g} {warmup_unit(runs)} or "
            "more, the longest tried. Try longer ones."
        )
    seeds = runs.groupby(ARM)["seed"].nunique()
    if single := int((seeds == 1).sum()):
        points = f"{single} of {len(seeds)} points"
        refusals.append(f"One seed at {points}: nothing about them can be called significant.")
    remarks = [*_dead_milestones(runs), *_count_updates(runs)]
    return [*(f"refusal: {text}" for text in refusals), *(f"remark: {text}" for text in remarks)]


def doubts(runs: pd.DataFrame) -> str:
    """Why points of comparable runs are not to be compared, for captions; empty if they are."""
    runs = ended_runs(runs)
    found = [*_find_incomparable(runs)]
    texts = [f"Not to be compared: {text}" for text in found[:_MOST_REASONS]]
    if beyond := len(found) - len(texts):
        texts.append(
            f"{several(beyond, 'more reason')} not to compare: see sweeper analysis claims."
        )
    return " ".join(texts)


def same_arms(runs: pd.DataFrame) -> list[tuple[tuple[object, ...], ...]]:
    """Arms that realised the same series of learning rates.

    Returns:
        Groups of two or more arms, each arm as its values of `ARM`.
    """
    arms = runs[runs["lr_series_hash"].notna()].drop_duplicates([*ARM, "lr_series_hash"])
    of_series = ["global_batch", "lr_series_hash"]
    groups = arms[arms.duplicated(of_series, keep=False)].groupby(of_series)[ARM]
    unique = [list(dict.fromkeys(g.itertuples(index=False, name=None))) for _, g in groups]
    return [tuple(group) for group in unique if len(group) > 1]


def upper_edges(runs: pd.DataFrame, metric: Metric = ACCURACY) -> list[tuple[int, str, float]]:
    """Batches whose best warmup is the longest of three or more: a longer warmup may be better.

    A best of no warmup at all is an end of the scale, not of the grid.

    Uses `global_batch`, `lr_rule`, `warmup_epochs`, `outcome` and the metric.

    Returns:
        Batch, lr rule and that warmup.
    """
    finished = runs[(runs["outcome"] == "finished") & runs[metric.name].notna()]
    found: list[tuple[int, str, float]] = []
    for key, group in finished.groupby(["global_batch", "lr_rule"]):
        batch, rule = cast("tuple[int, str]", key)
        means = metric.sign * group.groupby("warmup_epochs")[metric.name].mean()
        if len(means) >= 3 and means.idxmax() == means.index.max():
            found.append((int(batch), rule, float(means.index.max())))
    return found


def _find_incomparable(runs: pd.DataFrame) -> Iterator[str]:
    """Arms that are the same training, and arms that differ in more than the question."""
    for group in same_arms(runs):
        arms = " and ".join(
            f"batch {batch:,} warmup {warmup:g} rule {rule} base_lr {base_lr:g}"
            for batch, warmup, rule, base_lr in group
        )
        yield f"These arms are the same: {arms} realised identical learning rates at every step."
    for text in confounds(runs, [*ARM, "optimizer"]):
        yield f"Arms differ in more than the setting in question: {text}."


def describe_confounds(runs: pd.DataFrame, arm: Sequence[str]) -> str:
    """Why no estimate or verdict on arms can be given, if `confounds` finds any; else empty."""
    found = "; ".join(confounds(runs, arm))
    return f"the arms differ in more than the setting in question: {found}" if found else ""


def confounds(runs: pd.DataFrame, arm: Sequence[str]) -> list[str]:
    """What differs between arms besides the question, in words: their effect may be due to it.

    Arms are alike in a column if their runs have the same set of values in it.
    """
    runs = unify_near(runs, arm)
    varied = [name for name in arm if len(runs[name].unique()) > 1] or list(arm[:1])
    differing = {column: word for column, word in ALIKE.items() if len(runs[column].unique()) > 1}
    arms = [
        (", ".join(map(_shown, key)), group)
        for key, group in (runs.groupby(varied, dropna=False) if differing else ())
    ]
    found: list[str] = []
    for column, word in differing.items():
        first: dict[str, str] = {}  # for each set of values, the first arm that has it
        for name, group in arms:
            values = sorted({"none" if pd.isna(v) else _shown(v) for v in group[column].unique()})
            first.setdefault(" and ".join(values), name)
        if len(first) > 1:
            shown = "; ".join(f"{values} at {name}" for values, name in first.items())
            found.append(f"{word} {shown} ({', '.join(varied)})")
    return found


def _shown(value: object) -> str:
    return f"{value:,.15g}" if isinstance(value, Real) else str(value)


def _dead_milestones(runs: pd.DataFrame) -> Iterator[str]:
    unique = runs.drop_duplicates(["config_json", "epochs"])
    dead = {
        (milestone, int(epochs))
        for config, epochs in zip(stored_configs(unique), unique["epochs"], strict=True)
        for milestone in config.milestones
        if milestone >= epochs
    }
    for milestone, epochs in sorted(dead):
        length = f"{epochs} epoch{'s' * (epochs > 1)}"
        yield f"The milestone at epoch {milestone:g} never fires in a run of {length}."


def _count_updates(runs: pd.DataFrame) -> Iterator[str]:
    per_batch = runs.groupby("global_batch")[["steps_per_epoch", "steps"]].max().dropna()
    words = "; ".join(
        f"batch {b:,}: {int(row['steps_per_epoch']):,} "
        f"step{'s' * (int(row['steps_per_epoch']) > 1)} per epoch, {int(row['steps']):,} in all"
        for b, row in per_batch.iterrows()
    )
    if words:
        yield f"Updates: {words}."
