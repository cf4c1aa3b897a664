"""Draws warmup.png from the tables beside it; run in the repository's root."""

import matplotlib.pyplot as plt
import pandas as pd

folder = "docs/results/warmup_mechanism"
runs, curves = (pd.read_parquet(f"{folder}/{table}") for table in ("runs", "curves"))
first = curves[curves["epoch"] == 1].set_index("run_id")["largest_update_angle"]
runs = runs.assign(angle=runs["run_id"].map(first))[runs["outcome"] == "finished"]
figure, panels = plt.subplots(
    2, 4, figsize=(11, 5), sharex="col", sharey="row", layout="constrained"
)
for column, (name, of_one) in zip(panels.T, runs.groupby("optimizer")):
    for (warmup, line), style in zip(of_one.groupby("warmup_epochs"), ("--", "-")):
        means = line.groupby("base_lr")[["val_loss", "angle"]].mean()
        for axes, value in zip(column, means):
            label = f"{warmup:g} epochs of warmup"
            axes.plot(means[value], style, marker="o", markersize=3, label=label)
    column[0].set(title=name, yscale="log")
    column[1].set(xscale="log", yscale="log", xlabel="peak rate")
panels[0, 0].set_ylabel("validation loss")
panels[1, 0].set_ylabel("largest angle of a step\nin the first epoch [radians]")
panels[0, 1].legend(frameon=False, fontsize=8, loc="lower left")
figure.savefig(f"{folder}/warmup.png", dpi=110)
