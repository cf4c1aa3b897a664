"""The critical batch at positions of a training, from branches with other batches."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.stats.answer import Answer, capitalize
from analysis.stats.replicates import Array
from sweeper.spec.sentences import several

_COLUMNS = ["position", "parent_batch", "least", "estimate", "below", "noise_scale", "num_seeds",
            "visible"]  # fmt: skip

#: Of each of the two tests, so that the interval covers at 95 % or more.
_LEVEL = 0.025


@dataclass(frozen=True, slots=True)
class Critical:
    """The critical batch at a position: the largest at which, and up to which, none is worse.

    Attributes:
        least: it is this batch at least: all up to here are shown not to be worse; else the
            parent's [examples].
        below: it is less than this batch: all from here on are shown to be worse; inf if no batch
            is [examples].
        estimate: by the means alone: the middle, on a logarithmic scale, between the last batch
            that is not worse and the next; nan if that is the largest [examples].
        num_seeds: fewest pairs at a batch [count].
        visible: smallest half interval of a batch [unit of the metric]; nan if none has one.
    """

    least: float
    below: float
    estimate: float
    num_seeds: int
    visible: float


def estimate_critical_batch(
    parent_batch: int, worse: dict[int, Array], margin: float = 0.0
) -> Critical:
    """Test each batch against the continuation of its parent, in pairs of the same seed.

    From the largest batch down, those that are worse; from the smallest up, those that are not:
    each series ends with the first batch that is not shown, so its tests need no correction. A
    batch at which all seeds diverged is worse; one at which some did is not shown to be either.

    Args:
        parent_batch: of the parents [examples].
        worse: by batch above the parent's, how much worse the branch of each seed is than its
            parent at the same examples; inf if it diverged.
        margin: what counts as not worse, in the unit of the metric.

    Source:
        Merrill et al. 2025, arXiv:2505.23971, section 3.1 (with a fixed tolerance, not tests).
    """
    batches = sorted(worse)
    bounds = {batch: _bounds(worse[batch]) for batch in batches}
    shown_worse = [*takewhile(lambda batch: bounds[batch][0] > margin, reversed(batches))]
    shown_as_good = [*takewhile(lambda batch: bounds[batch][1] <= margin, batches)]
    as_good = [parent_batch, *takewhile(lambda batch: worse[batch].mean() <= margin, batches)]
    following = batches[len(as_good) - 1] if len(as_good) <= len(batches) else np.nan
    middle = float(np.sqrt(as_good[-1] * following))
    least = float([parent_batch, *shown_as_good][-1])
    below = float([np.inf, *shown_worse][-1])
    seeds = min((len(values) for values in worse.values()), default=0)
    halves = [(high - low) / 2 for low, high in bounds.values() if np.isfinite(high - low)]
    return Critical(least, below, middle, seeds, min(halves, default=np.nan))


def _bounds(worse: Array) -> tuple[float, float]:
    """Lower and upper bound of a mean, each one-sided; infinite where nothing can be shown."""
    if len(worse) > 1 and np.isposinf(worse).all():
        return np.inf, np.inf
    if len(worse) < 2 or not np.isfinite(worse).all():
        return -np.inf, np.inf
    half = student.ppf(1 - _LEVEL, len(worse) - 1) * worse.std(ddof=1) / np.sqrt(len(worse))
    return float(worse.mean() - half), float(worse.mean() + half)


def branch_differences(runs: pd.DataFrame, curves: pd.DataFrame, name: str) -> pd.DataFrame:
    """How branches stand against their parents' continuation, after the same examples.

    That is as many epochs after the position as every branch has trained, or as many evaluations
    if a position is within an epoch. The continuation is a branch at the parent's batch, else the
    parent itself.

    Args:
        runs: comparable but for batch, seed and branch: `run_id`, `branch`, `seed`,
            `global_batch`, `num_train_examples`, `outcome`.
        curves: with `run_id`, `epoch`, `examples_seen`, `realised_batch`, `noise_scale` and the
            metric.
        name: the metric.

    Returns:
        A row per branch: `position` [epochs], `parent_batch`, `global_batch`, `seed`,
        `noise_scale` that the parent measured before the position, `value`, `of_parent`, `after`
        [epochs].

    Raises:
        ValueError: if there are no branches, none that finished has a curve, no parent has, or a
            position is at no evaluation.
    """
    runs = runs[runs["branch"].notna() & runs["outcome"].isin(["finished", "diverged"])]
    if not len(runs):
        msg = "results must hold branches that have ended; got none. Train some: branch=RUN_ID@1."
        raise ValueError(msg)
    parts = runs["branch"].str.partition("@")
    runs = runs.assign(parent=parts[0], position=parts[2].astype(float))
    curves, size = _number_evaluations(runs, curves)
    runs = runs[["run_id", "seed", "global_batch", "outcome", "parent", "position"]]
    runs = runs.assign(mark=(runs["position"] / size).round())
    ends = curves.sort_values("step").drop_duplicates(["run_id", "mark"], keep="last")
    last = runs["run_id"].map(ends.groupby("run_id")["mark"].max()) - runs["mark"]
    if np.isnan(fewest := last[runs["outcome"] == "finished"].min()):
        msg = (
            "results must hold the curve of a branch that finished; got none. Train branches, or "
            "run their sweep again if files were damaged."
        )
        raise ValueError(msg)
    at_start = ends[["run_id", "mark", "realised_batch", "noise_scale"]].rename(
        columns={"realised_batch": "parent_batch"}
    )
    at_end = ends.assign(mark=ends["mark"] - fewest)[["run_id", "mark", name]]
    of_branches = runs.merge(at_start, on=["run_id", "mark"]).merge(
        at_end.rename(columns={name: "value"}), on=["run_id", "mark"], how="left"
    )
    lost = of_branches["outcome"] == "diverged"
    of_branches["value"] = of_branches["value"].mask(lost)
    same = of_branches["global_batch"] == of_branches["parent_batch"]
    by_parent = ["parent", "mark"]
    own = of_branches.loc[same & ~lost, [*by_parent, "value"]].drop_duplicates(by_parent)
    its = at_end.rename(columns={"run_id": "parent", name: "of_parent"})
    joined = of_branches.merge(own.rename(columns={"value": "again"}), on=by_parent, how="left")
    joined = joined.merge(its, on=by_parent, how="left")
    joined["of_parent"] = joined["again"].fillna(joined["of_parent"])
    columns = ["position", "parent_batch", "global_batch", "seed", "noise_scale", "value"]
    joined = joined[joined["of_parent"].notna()][[*columns, "of_parent"]]
    joined = joined.assign(after=fewest * size)
    if joined.empty:
        parents = ", ".join(sorted({*runs["parent"]}))
        msg = (
            f"results must hold the parents of these branches, with their curves; got none of "
            f"{parents}. Give --where conditions that keep them, or name their folder too."
        )
        raise ValueError(msg)
    return joined


def _number_evaluations(runs: pd.DataFrame, curves: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Curves with `mark`, the same after the same examples, and the size of a mark [epochs].

    Marks are epochs or, if a position is within one, the closest evaluations of any of the runs.
    """
    if (runs["position"] % 1 == 0).all():
        return curves.assign(mark=curves["epoch"]), 1
    curves = curves[curves["run_id"].isin({*runs["run_id"], *runs["parent"]})].sort_values("step")
    epochs = curves["examples_seen"] / int(runs["num_train_examples"].iloc[0])
    size = float(epochs.groupby(curves["run_id"]).agg(lambda at: at.diff().median()).min())
    marks = runs["position"] / size
    if not (abs(marks - marks.round()) < 0.1).all():
        msg = (
            f"branches within an epoch must begin at evaluations; got {runs['branch'].iloc[0]}, "
            f"evaluated every {size:.3g} epochs. Train parents and branches with evaluate_every=."
        )
        raise ValueError(msg)
    return curves.assign(mark=(epochs / size).round()), size


def name_length(differences: pd.DataFrame) -> str:
    """How long after each position branches are compared, in words."""
    after = differences["after"].iloc[0]
    return f"{after:.3g} epoch{'' if after == 1 else 's'} after each position"


def critical_branches(table: pd.DataFrame, sign: float, margin: float = 0.0) -> pd.DataFrame:
    """The critical batch at each position, with the noise scale that the parents measured there.

    Args:
        table: from `branch_differences`.
        sign: 1 if more of the metric is better, -1 if less.
        margin: what counts as not worse, in the unit of the metric.

    Returns:
        A row per position: `position`, `parent_batch`, `least`, `estimate`, `below`, `noise_scale`
        (mean over seeds; nan if not measured), `num_seeds`, `visible` (the smallest mean difference
        that is shown to be worse at some batch; nan if none could be).
    """
    rows: list[dict[str, Any]] = []
    for _, group in table.groupby(["position", "parent_batch"]):
        position, parent = group["position"].iloc[0], int(group["parent_batch"].iloc[0])
        position = int(position) if position.is_integer() else position
        larger = group[group["global_batch"] > parent]
        worse = {
            int(str(batch)): (sign * (g["of_parent"] - g["value"])).fillna(np.inf).to_numpy()
            for batch, g in larger.groupby("global_batch")
        }
        found = estimate_critical_batch(parent, worse, margin)
        noise = group.drop_duplicates("seed")["noise_scale"].mean()
        at = {"position": position, "parent_batch": parent, "noise_scale": noise}
        rows.append(at | asdict(found) | {"visible": found.visible + margin})
    return pd.DataFrame(rows, columns=_COLUMNS)


def branch_answers(found: pd.DataFrame, margin: float, words: str) -> Iterator[Answer]:
    """What `critical_branches` found at each position; words are those of the margin."""
    for row in found.to_dict("records"):
        least, below, parent = row["least"], row["below"], row["parent_batch"]
        seeds = several(row["num_seeds"], "seed")
        parts = [
            f"{least:,.0f} at least" * (least > parent),
            f"less than {below:,.0f}" * bool(np.isfinite(below)),
        ]
        said = " and ".join(filter(None, parts))
        if not said:
            shows = f": only differences of {row['visible']:.2g} or more would show"
            said = "these seeds do not tell" + shows * bool(np.isfinite(row["visible"]))
        middle = "none is worse" if np.isnan(row["estimate"]) else f"{row['estimate']:,.0f}"
        yield Answer(
            name="critical_batch",
            question=f"What is the critical batch after epoch {row['position']:g}, up to which "
            f"none is worse than {parent:,} (margin {words})?",
            words=f"{capitalize(said)} (95 %, {seeds}); by the means {middle}.",
            value=row["estimate"],
            low=least if parts[0] else np.nan,
            high=below,
            unit="examples",
            settings={
                "definition": "branches", "position": row["position"], "parent_batch": parent,
                "margin": margin,
            },
            next="" if parts[0] and parts[1] else "Train parents of more seeds, then their "
            f"branches: branch=@{row['position']:g}",
        )  # fmt: skip


def describe_ratio(table: pd.DataFrame) -> str:
    """Whether the critical batch can be one multiple of the noise scale at all positions."""
    known = table[table["noise_scale"].gt(0) & np.isfinite(table["noise_scale"])]
    if len(known) < 2:
        return "The noise scale was not measured at two positions (noise_span=)."
    least = float((known["least"] / known["noise_scale"]).max())
    most = float((known["below"] / known["noise_scale"]).min())
    if least >= most:
        return (
            "No one ratio of critical batch and noise scale lies in the intervals of all positions."
        )
    return (
        f"One ratio of critical batch and noise scale fits all positions: from {least:.3g} to "
        f"{most:.3g}."
    )
