"""What makes a comparison worthless before any statistics: checks on the runs themselves."""

import json
from dataclasses import dataclass
from typing import cast

import pandas as pd

#: Columns whose values make two runs different arms.
ARM = ["global_batch", "warmup_epochs", "lr_rule", "base_lr"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason for doubt.

    Attributes:
        kind: same_arms, confounded_norm, edge_optimum, one_seed, dead_milestone or updates.
        text: in words.
        is_refusal: whether conclusions that rest on it are refused; else it is a remark.
    """

    kind: str
    text: str
    is_refusal: bool


def preflight(runs: pd.DataFrame) -> list[Finding]:
    """Look for what the design cannot support.

    Args:
        runs: one study; uses the arm's columns, `outcome`, `seed`, `lr_series_hash`, `bn_span`,
            `steps_per_epoch`, `steps`, `epochs`, `config_json`.

    Returns:
        Findings, refusals first.
    """
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    found = [
        *_same_arms(ended),
        *_confounded_norm(ended),
        *_edge_optima(ended),
        *_one_seed(ended),
        *_dead_milestones(ended),
        *_updates(ended),
    ]
    return sorted(found, key=lambda finding: not finding.is_refusal)


def same_arms(runs: pd.DataFrame) -> list[tuple[tuple[object, ...], ...]]:
    """Arms that realised one and the same series of learning rates.

    Args:
        runs: uses the arm's columns and `lr_series_hash`.

    Returns:
        Groups of two or more arms, each arm as its values of `ARM`.
    """
    arms = runs[runs["lr_series_hash"].notna()].drop_duplicates([*ARM, "lr_series_hash"])
    groups = arms.groupby(["global_batch", "lr_series_hash"])[ARM]
    unique = [list(dict.fromkeys(g.itertuples(index=False, name=None))) for _, g in groups]
    return [tuple(group) for group in unique if len(group) > 1]


def at_upper_edge(runs: pd.DataFrame) -> list[tuple[int, str, float]]:
    """Batches whose best warmup is the longest of three or more: there is no telling the best.

    A best of no warmup at all is an end of the scale, not of the grid.

    Args:
        runs: that finished or diverged; uses `global_batch`, `lr_rule`, `warmup_epochs`,
            `val_accuracy` of finished runs.

    Returns:
        Batch, lr rule and that warmup.
    """
    finished = runs[(runs["outcome"] == "finished") & runs["val_accuracy"].notna()]
    found: list[tuple[int, str, float]] = []
    for key, group in finished.groupby(["global_batch", "lr_rule"]):
        batch, rule = cast("tuple[int, str]", key)
        means = group.groupby("warmup_epochs")["val_accuracy"].mean()
        if len(means) >= 3 and means.idxmax() == means.index.max():
            found.append((int(batch), rule, float(means.index.max())))
    return found


def _edge_optima(runs: pd.DataFrame) -> list[Finding]:
    return [
        Finding(
            "edge_optimum",
            f"At batch {batch:,} ({rule}) the longest warmup tried, {warmup:g} epochs, is best: "
            "the optimum is unbounded. Try longer ones.",
            is_refusal=True,
        )
        for batch, rule, warmup in at_upper_edge(runs)
    ]


def _same_arms(runs: pd.DataFrame) -> list[Finding]:
    return [
        Finding(
            "same_arms",
            "These arms are the same: "
            + " and ".join(_arm_words(arm) for arm in group)
            + " realised identical learning rates at every step.",
            is_refusal=True,
        )
        for group in same_arms(runs)
    ]


def _arm_words(arm: tuple[object, ...]) -> str:
    batch, warmup, rule, base_lr = arm
    return f"batch {batch:,} warmup {warmup:g} rule {rule} base_lr {base_lr:g}"


def _confounded_norm(runs: pd.DataFrame) -> list[Finding]:
    spans = runs.groupby("global_batch")["bn_span"].agg(["min", "max"])
    if spans["max"].max() == spans["min"].min() or spans.isna().all(axis=None):
        return []
    words = ", ".join(f"{int(low)} at batch {b:,}" for b, low in spans["min"].dropna().items())
    text = f"BatchNorm spans differ ({words}): the batch and the span were varied together."
    return [Finding("confounded_norm", text, is_refusal=True)]


def _one_seed(runs: pd.DataFrame) -> list[Finding]:
    seeds = runs.groupby(ARM)["seed"].nunique()
    single = int((seeds == 1).sum())
    if not single:
        return []
    text = (
        f"{single} of {len(seeds)} points have one seed: nothing about them can be called "
        "significant."
    )
    return [Finding("one_seed", text, is_refusal=True)]


def _dead_milestones(runs: pd.DataFrame) -> list[Finding]:
    dead: set[tuple[float, int]] = set()
    for text, epochs in set(zip(runs["config_json"], runs["epochs"], strict=True)):
        schedule = json.loads(text).get("schedule") or {}
        late = [m for m in schedule.get("milestones") or () if m >= epochs]
        dead |= {(float(m), int(epochs)) for m in late}
    return [
        Finding(
            "dead_milestone",
            f"The milestone at epoch {milestone:g} never fires in a run of {epochs} epochs.",
            is_refusal=False,
        )
        for milestone, epochs in sorted(dead)
    ]


def _updates(runs: pd.DataFrame) -> list[Finding]:
    if not len(runs):
        return []
    per_batch = runs.groupby("global_batch")[["steps_per_epoch", "steps"]].max()
    words = "; ".join(
        f"batch {b:,}: {int(row['steps_per_epoch']):,} steps an epoch, {int(row['steps']):,} in all"
        for b, row in per_batch.dropna().iterrows()
    )
    return [Finding("updates", f"Updates: {words}.", is_refusal=False)] if words else []
