"""Prints the table of alfarra2020.md from the tables beside it; run in the repository's root."""

import pandas as pd

BEST_LOSS = 0.689791  # by Newton's method: tests/lightning_modules/models/test_logistic.py
folder = "docs/results/alfarra2020"
runs = pd.read_parquet(f"{folder}/runs").set_index("run_id")
curves = pd.read_parquet(f"{folder}/curves").sort_values("examples_seen")
runs["learnt"] = runs["config_json"].str.contains('"batch": ?32,.*"max_batch": ?512')
for within in (0.006, 0.008, 0.010):
    there = curves[curves["val_loss"] < BEST_LOSS + within]
    first = there.groupby("run_id")["examples_seen"].first()
    shown = runs.assign(examples=first).groupby(["learnt", "global_batch"])["examples"]
    print(f"within {within}:", shown.apply(sorted), sep="\n")  # noqa: T201
