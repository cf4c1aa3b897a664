"""The overrides of a tuned sweep: which are compared, which tuned."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from sweeper.commands.overrides import MOST_VALUES, parse, split_values
from sweeper.tuning.space import Space, ends_override
from sweeper.upstream.hydras import ConfigLoader

_TAGS = {"tune", "log"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOverrides:
    """The overrides of a tuned sweep, by their use.

    `fixed` have a single value; `compared` has, for each key, an override per value.
    """

    fixed: Sequence[str]
    compared: Sequence[Sequence[str]]
    space: Space

    def points(self) -> Iterator[tuple[str, ...]]:
        """The compared overrides of each study."""
        yield from itertools.product(*self.compared)


def sort_overrides(given: Sequence[str], loader: ConfigLoader) -> TuningOverrides:
    """Sort the overrides of a command.

    An interval is tuned, and so is a range or choice with the tag `tune`; every other list of
    values is compared.

    Raises:
        ValueError: if an override cannot be parsed, a range is invalid, a key occurs twice, or
            nothing is tuned.
    """
    overrides = parse(given, loader)
    _check_once(overrides)
    space: Space = {}
    fixed: list[str] = []
    compared: list[list[str]] = []
    for override in overrides:
        line = override.input_line or ""
        tags = _tags(override)
        if not override.is_sweep_override():
            fixed.append(line)
        elif isinstance(override.value(), IntervalSweep) or "tune" in tags:
            key = override.key_or_group
            space[key] = _distribution(override)
            if override.is_add():  # the key must exist for trials to set it
                fixed.append(f"+{ends_override(key, space[key]).partition(',')[0]}")
        else:
            compared.append([value.input_line or "" for value in split_values(override, loader)])
    if not space:
        msg = (
            "something must be tuned with hydra/sweeper=optuna; got no interval() and nothing "
            "tagged tune. Write base_lr=tag(log, interval(1e-3, 1)), or use hydra/sweeper=grid."
        )
        raise ValueError(msg)
    return TuningOverrides(fixed=fixed, compared=compared, space=space)


def _distribution(override: Override) -> BaseDistribution:
    """The distribution that a tuned override samples from.

    Numbers are whole if the ends of the range and its step are; with the tag log they are sampled
    on a logarithmic scale.
    """
    sweep, log = override.value(), "log" in _tags(override)
    if isinstance(sweep, ChoiceSweep):
        choices = tuple(override.sweep_string_iterator())
        is_choice = len(set(choices)) == len(choices) > 1
        _check_rule(is_choice, override, "a choice of two or more different values")
        _check_rule(not log, override, "an interval() or range() to be tagged log")
        return CategoricalDistribution(choices)
    low, high, step = _ends(override)
    _check_rule(not log or low > 0, override, "above 0 to be tagged log")
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None):
        _check_rule(not log or step in (None, 1), override, "in steps of 1 to be tagged log")
        return IntDistribution(low, high, log=log, step=step or 1)
    rule = "an interval() to be tagged log; a range() of fractions has fixed steps"
    _check_rule(not log or step is None, override, rule)
    return FloatDistribution(low, high, log=log, step=step)


def _ends(override: Override) -> tuple[float, float, float | None]:
    """The lowest and highest number of a tuned override, and its step if it has any."""
    sweep = override.value()
    if isinstance(sweep, RangeSweep):
        values = list(itertools.islice(sweep.range(), MOST_VALUES + 1))
        rule = f"a range of 2 to {MOST_VALUES:,} numbers"
        _check_rule(1 < len(values) <= MOST_VALUES, override, rule)
        return min(values), max(values), abs(values[1] - values[0])
    assert isinstance(sweep, IntervalSweep)
    low, high = sweep.start, sweep.end
    assert low is not None
    assert high is not None
    rule = "an interval from a lower to a higher number"
    _check_rule(math.isfinite(low) and math.isfinite(high) and low < high, override, rule)
    return low, high, None


def _check_rule(holds: bool, override: Override, rule: str) -> None:  # noqa: FBT001
    if not holds:
        msg = f"{override.key_or_group} must be {rule}; got {override.input_line}."
        raise ValueError(msg)


def _tags(override: Override) -> set[str]:
    """The tags of an override; ValueError if any is unknown or they contradict each other."""
    sweep = override.value()
    tags = set(sweep.tags) if isinstance(sweep, IntervalSweep | RangeSweep | ChoiceSweep) else set()
    if unknown := sorted(tags - _TAGS):
        msg = f"a tag must be log or tune; got {unknown[0]} in {override.input_line}."
        raise ValueError(msg)
    return tags


def _check_once(overrides: Sequence[Override]) -> None:
    lines: dict[str, str] = {}
    for override in overrides:
        key, line = override.key_or_group, override.input_line or ""
        if key in lines and (override.is_sweep_override() or "(" in lines[key]):
            msg = (
                f"{key} must be given once, either tuned or compared; got {lines[key]} and {line}. "
                "Remove one of them."
            )
            raise ValueError(msg)
        lines[key] = line
