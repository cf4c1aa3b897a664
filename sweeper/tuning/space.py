"""The search space of a study: an Optuna distribution for each tuned key."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)

#: By config key, in the order of the command line.
Space = dict[str, BaseDistribution]

#: Part of a range, on its own scale, that counts as its edge.
EDGE = 0.05


def interval(key: str, low: float, high: float, *, log: bool, given: str) -> BaseDistribution:
    """Any number from low to high; whole numbers if both ends are.

    Args:
        key: config key.
        low: end of the range, included.
        high: end of the range, included.
        log: whether to choose evenly in its logarithm.
        given: the override as it was typed, for errors.

    Raises:
        ValueError: if the range is empty, or has no logarithm.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        _refuse(key, "an interval from a lower to a higher number", given)
    _check_log(key, low, log=log, given=given)
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def steps(key: str, values: Sequence[float], *, log: bool, given: str) -> BaseDistribution:
    """One of evenly spaced numbers.

    Args:
        key: config key.
        values: the numbers.
        log: whether to choose evenly in the logarithm; whole numbers one apart only.
        given: the override as it was typed, for errors.

    Raises:
        ValueError: if there are fewer than two, or the logarithm cannot be had.
    """
    if len(values) < 2:
        _refuse(key, "a range of two or more numbers", given)
    low, high = min(values), max(values)
    step = abs(values[1] - values[0])
    _check_log(key, low, log=log, given=given)
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        if log and step != 1:
            _refuse(key, "in steps of 1 to be tagged log", given)
        return IntDistribution(low, high, log=log, step=step)
    if log:
        _refuse(
            key, "an interval() to be tagged log; a range() of fractions has fixed steps", given
        )
    return FloatDistribution(low, high, step=step)


def choice(key: str, values: Sequence[str], *, log: bool, given: str) -> BaseDistribution:
    """One of several values, without an order.

    Args:
        key: config key or group.
        values: the choices, as they are typed.
        log: refused; choices have no scale.
        given: the override as it was typed, for errors.

    Raises:
        ValueError: if there is only one choice, one comes twice, or it is tagged log.
    """
    if len(set(values)) < 2 or len(set(values)) < len(values):
        _refuse(key, "a choice of two or more different values", given)
    if log:
        _refuse(key, "an interval() or range() to be tagged log", given)
    return CategoricalDistribution(tuple(values))


def _check_log(key: str, low: float, *, log: bool, given: str) -> None:
    if log and low <= 0:
        _refuse(key, "above 0 to be tagged log", given)


def _refuse(key: str, rule: str, given: str) -> None:
    msg = f"{key} must be {rule}; got {given}."
    raise ValueError(msg)


def override(key: str, value: Any) -> str:
    """The override that gives a key this value."""
    return f"{key}={value if isinstance(value, str) else repr(value)}"


def short_override(key: str, value: Any) -> str:
    """The same, rounded for people to read."""
    return f"{key}={value:.4g}" if isinstance(value, float) else override(key, value)


def ends(key: str, distribution: BaseDistribution) -> str:
    """An override that sweeps over the ends of a range, or over every choice."""
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return f"{key}={distribution.low!r},{distribution.high!r}"
    assert isinstance(distribution, CategoricalDistribution)
    return f"{key}={','.join(str(value) for value in distribution.choices)}"


def edge(key: str, value: Any, distribution: BaseDistribution) -> str | None:
    """Advice to widen a range, if a value lies at its edge.

    A choice has no edge, and a range that begins at 0 cannot sensibly be widened below it.

    Args:
        key: config key.
        value: the best value found.
        distribution: the range.

    Returns:
        A sentence, or None if the value is inside.
    """
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return None
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
        return None
    return (
        f"the best {key}={value:g} is at the {end} end of its range "
        f"({distribution.low:g} to {distribution.high:g}): widen it {direction}wards"
    )


def to_json(space: Mapping[str, BaseDistribution]) -> dict[str, str]:
    """A space as text, for storage."""
    return {key: distribution_to_json(distribution) for key, distribution in space.items()}


def from_json(texts: Mapping[str, str]) -> Space:
    """A space from storage."""
    return {key: json_to_distribution(text) for key, text in texts.items()}
