"""The search space of a study: an Optuna distribution for each tuned key."""

import math
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

#: By config key, in the order of the command line.
Space = dict[str, BaseDistribution]

#: Fraction of a range, on its own linear or log scale, that counts as its edge.
EDGE = 0.05


def format_override(key: str, value: Any, *, short: bool = False) -> str:
    """The override that gives a key this value; if short, rounded for people to read."""
    if isinstance(value, float):
        return f"{key}={value:.4g}" if short else f"{key}={value!r}"
    return f"{key}={value}"


def ends_override(key: str, distribution: BaseDistribution) -> str:
    """An override that sweeps over the ends of a range, or over every choice."""
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return f"{key}={distribution.low!r},{distribution.high!r}"
    assert isinstance(distribution, CategoricalDistribution)
    return f"{key}={','.join(str(value) for value in distribution.choices)}"


def edge_advice(key: str, value: Any, distribution: BaseDistribution) -> str:
    """Advice to widen a range if a value lies at its edge; empty if the value is inside.

    A choice has no edge, and a range that begins at 0 cannot sensibly be widened below it.
    """
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return ""
    low, high, at = float(distribution.low), float(distribution.high), float(value)
    if distribution.log:
        low, high, at = math.log(low), math.log(high), math.log(at)
    fraction = (at - low) / (high - low)
    is_continuous = distribution.step is None or distribution.log
    margin = EDGE if is_continuous else 1e-9
    if fraction <= margin and distribution.low != 0:
        end, direction = "low", "down"
    elif fraction >= 1 - margin:
        end, direction = "high", "up"
    else:
        return ""
    return (
        f"the best {key}={value:g} is at the {end} end of its range "
        f"({distribution.low:g} to {distribution.high:g}): widen it {direction}wards"
    )
