"""Which parameters get weight decay and a trust ratio, and which are exempt."""

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, *, exempt_norm_and_bias: bool) -> list[dict[str, Any]]:
    """A model's parameters in groups for an optimizer, each with `adapt`.

    The exempt parameters, biases and those of at most 1 dimension (the scales of norms), are a
    group of their own with `weight_decay` 0 and without a trust ratio.

    Source:
        Goyal et al. 2017, section 5.3 (no decay of BatchNorm's parameters); Jia et al. 2018 and
        MLPerf's skip list (biases too).
    """
    named = list(model.named_parameters())
    if not exempt_norm_and_bias:
        return [{"params": [parameter for _, parameter in named], "adapt": True}]
    exempt = {name for name, p in named if p.ndim <= 1 or name.rpartition(".")[2] == "bias"}
    groups = [
        {"params": [p for name, p in named if name not in exempt], "adapt": True},
        {"params": [p for name, p in named if name in exempt], "adapt": False, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
