"""Draws delay.png from the tables beside it; run in the repository's root."""

import json

import matplotlib.pyplot as plt
import pandas as pd

folder = "docs/results/gradient_delay"
figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for axes, study, by in zip(panels, ("quadratic", "optimizers"), ("global_batch", "optimizer")):
    runs = pd.read_parquet(f"{folder}/{study}/runs")
    runs["delay"] = [json.loads(text)["gradient_delay"] or 0 for text in runs["config_json"]]
    runs = runs[(runs["outcome"] == "finished") & (runs["val_loss"] < 10)]
    for color, (name, of_one) in enumerate(runs.groupby(by)):
        for delay, line in of_one.groupby("delay"):
            style = {0: "-", 1: "--", 3: ":"}[delay]
            means = line.groupby("base_lr")["val_loss"].mean()
            label = name if not delay else None
            axes.plot(means, style, marker="o", markersize=3, color=f"C{color}", label=label)
    axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="validation loss")
    axes.legend(frameon=False, title="no delay")
panels[0].set(title="noisy quadratic, batches\ndashed: a delay of 1, dotted: of 3", ylim=(0.4, 20))
panels[1].set_title("small GPT, batch 16\ndashed: a delay of 1")
figure.savefig(f"{folder}/delay.png", dpi=130)
