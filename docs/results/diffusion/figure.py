"""Draws distance.png from the tables of the critical-batch study; run in the root."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import analysis

folder = "docs/results/critical_batch_gpt"
runs, curves = (pd.read_parquet(f"{folder}/{table}") for table in ("runs", "curves"))
runs = runs[runs["base_lr"].round(4) == 0.0024]
figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.4), sharex=True, sharey=True, layout="constrained"
)
for batch, axes in zip((4, 8, 16), panels):
    series = analysis.constant_rate(runs[runs["global_batch"] == batch], curves)
    p = analysis.diffusion(series, np.random.default_rng(0)).power.value
    measured = series.groupby("step")["distance"].mean()
    t, one = measured.index.to_numpy(float), np.ones(len(measured))
    picks = np.unique(np.searchsorted(t, np.geomspace(t[0], t[-1], 40)))
    axes.plot(measured, linewidth=2, label="measured, mean of 3 seeds")
    for label, style, columns in (
        (f"power, {p:.2f}", "--", [t**p]),
        ("logarithm", ":", [one, np.log(t)]),
    ):
        laws = np.stack(columns, axis=1)
        fit = np.linalg.lstsq(laws[picks], measured.to_numpy()[picks], rcond=None)[0]
        axes.plot(t, laws @ fit, style, color="black", linewidth=1, label=label)
    axes.set(
        xscale="log", yscale="log", ylim=(2, 60), xlabel="optimizer step", title=f"batch {batch}"
    )
    axes.legend(frameon=False, loc="lower right")
panels[0].set_ylabel("distance from the start")
figure.savefig("docs/results/diffusion/distance.png", dpi=130)
