"""Whether runs were trained as published ones, so that the two may share a figure."""

import math

import pandas as pd

from analysis.papers.design import Paper


def is_same_protocol(runs: pd.DataFrame, epochs: int) -> bool:
    """Whether runs may stand beside published ImageNet, ResNet-50 numbers.

    Args:
        runs: uses `data`, `model`, `epochs`.
        epochs: of the published runs.
    """
    first = runs.iloc[0]
    return (
        "imagenet" in str(first["data"]).lower()
        and "resnet50" in str(first["model"]).lower().replace("-", "")
        and bool((runs["epochs"] == epochs).all())
    )


def differences(runs: pd.DataFrame, paper: Paper) -> list[str]:
    """In what these runs were trained otherwise than the published points of a paper.

    Args:
        runs: on the same data, model and epochs; uses the columns of the paper's protocol.
        paper: with published points.
    """
    first = runs.iloc[0]
    ours = {name: float(first[name]) for name in paper.protocol if name in runs}
    if "rate_per_example" in paper.protocol:
        ours["rate_per_example"] = float(first["base_lr"]) / float(first["base_batch"])
    return [
        f"{name} is {value:.4g}, there {paper.protocol[name]:.4g}"
        for name, value in ours.items()
        if not math.isclose(value, paper.protocol[name], rel_tol=1e-6)
    ]
