"""The figure of the sweep in docs/results/lbsac.md: `python lbsac/figure.py RESULTS PNG`."""

import json
import sys

import matplotlib.pyplot as plt
import pandas as pd

TARGET = -200  # the return at which a run counts as trained, and ends
COLORS = {64: "tab:blue", 256: "tab:orange", 1024: "tab:green"}


def load(results: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per run with its `critics` and `steps_to_target`; and its returns, epoch by epoch."""
    runs = pd.read_parquet(f"{results}/runs").query("outcome == 'finished'").set_index("run_id")
    runs["critics"] = [json.loads(text)["module"]["num_critics"] for text in runs.config_json]
    metrics = pd.read_parquet(f"{results}/metrics").query("name == 'val/return'")
    returns = metrics.join(runs[["global_batch", "steps_per_epoch"]], on="run_id", how="inner")
    returns["steps"] = returns.epoch * returns.steps_per_epoch
    reached = returns[returns.value >= TARGET].groupby("run_id").steps.min()
    runs["steps_to_target"] = reached
    return runs, returns.sort_values(["run_id", "epoch"])


def draw(runs: pd.DataFrame, returns: pd.DataFrame) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for batch, group in runs.groupby("global_batch"):
        means = group.groupby("critics").steps_to_target.mean()
        left.plot(means.index, means, color=COLORS[batch], label=f"batch {batch:,}")
        left.plot(group.critics, group.steps_to_target, ".", color=COLORS[batch])
    left.set(xscale="log", yscale="log", xlabel="critics", ylabel=f"steps to a return of {TARGET}")
    left.set_xticks(sorted(runs.critics.unique()), sorted(runs.critics.unique()))
    left.minorticks_off()
    left.set_yticks([500, 1000, 2000, 4000], ["500", "1,000", "2,000", "4,000"])
    left.legend()
    for _, run in returns.groupby("run_id"):
        color = COLORS[run.global_batch.iloc[0]]
        right.plot(run.steps, run.value, color=color, alpha=0.6, linewidth=1)
    right.axhline(TARGET, color="gray", linestyle=":")
    right.set(xscale="log", xlabel="steps", ylabel="return")
    return figure


if __name__ == "__main__":
    runs, returns = load(sys.argv[1])
    table = runs.pivot_table(
        index="global_batch", columns="critics", values="steps_to_target", aggfunc=["mean", "count"]
    )
    print(table.to_string())  # noqa: T201
    draw(runs, returns).savefig(sys.argv[2], dpi=110)
