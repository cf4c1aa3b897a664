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


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOverrides:
    """The overrides of a tuned sweep, by their use.

    `fixed` have a single value; `points` are the compared overrides of each study.
    """

    fixed: Sequence[str]
    points: Sequence[Sequence[str]]
    space: Space

    def points_with_ends(self) -> Iterator[list[str]]:
        """The overrides of each compared point, with both ends of every tuned range."""
        ends = [ends_override(key, distribution) for key, distribution in self.space.items()]
        return ([*point, *ends] for point in self.points)


def sort_overrides(given: Sequence[str], loader: ConfigLoader) -> TuningOverrides:
    """Sort the overrides of a command.

    An interval is tuned, and so is a range or choice with the tag `tune`; every other list of
    values is compared.

    Raises:
        ValueError: if an override cannot be parsed, a range is invalid, a key occurs twice, or
            nothing is tuned.
    """
    space: Space = {}
    fixed: list[str] = []
    compared: list[list[str]] = []
    lines: dict[str, str] = {}
    for override in parse(given, loader):
        key, line, sweep = override.key_or_group, override.input_line or "", override.value()
        if key in lines and (override.is_sweep_override() or "(" in lines[key]):
            msg = (
                f"{key} must be given once, either tuned or compared; got {lines[key]} and {line}. "
                "Remove one of them."
            )
            raise ValueError(msg)
        lines[key] = line
        has_tags = isinstance(sweep, IntervalSweep | RangeSweep | ChoiceSweep)
        tags = set(sweep.tags) if has_tags else set[str]()
        if unknown := sorted(tags - {"tune", "log"}):
            msg = f"a tag must be log or tune; got {unknown[0]} in {line}."
            raise ValueError(msg)
        if not override.is_sweep_override():
            fixed.append(line)
        elif isinstance(sweep, IntervalSweep) or "tune" in tags:
            space[key] = _build_distribution(override, log="log" in tags)
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
    return TuningOverrides(fixed=fixed, points=[*itertools.product(*compared)], space=space)


def _build_distribution(override: Override, *, log: bool) -> BaseDistribution:
    """The distribution that a tuned override samples from, on a logarithmic scale if `log`.

    Numbers are whole if the ends of the range and its step are.
    """

    def check(holds: bool, rule: str) -> None:  # noqa: FBT001
        if not holds:
            msg = f"{override.key_or_group} must be {rule}; got {override.input_line}."
            raise ValueError(msg)

    sweep = override.value()
    if isinstance(sweep, ChoiceSweep):
        choices = tuple(override.sweep_string_iterator())
        is_choice = len(set(choices)) == len(choices) > 1
        check(is_choice, "a choice of two or more different values")
        check(not log, "an interval() or range() to be tagged log")
        return CategoricalDistribution(choices)
    if isinstance(sweep, RangeSweep):
        values = list(itertools.islice(sweep.range(), MOST_VALUES + 1))
        check(1 < len(values) <= MOST_VALUES, f"a range of 2 to {MOST_VALUES:,} numbers")
        low, high, step = min(values), max(values), abs(values[1] - values[0])
    else:
        assert isinstance(sweep, IntervalSweep)
        assert sweep.start is not None
        assert sweep.end is not None
        low, high, step = sweep.start, sweep.end, None
        is_interval = math.isfinite(low) and math.isfinite(high) and low < high
        check(is_interval, "an interval from a lower to a higher number")
    check(not log or low > 0, "above 0 to be tagged log")
    if isinstance(low, int) and isinstance(high, int):
        check(not log or step in (None, 1), "in steps of 1 to be tagged log")
        return IntDistribution(low, high, log=log, step=step or 1)
    is_smooth = not log or step is None
    check(is_smooth, "an interval() to be tagged log; a range() of fractions has fixed steps")
    return FloatDistribution(low, high, log=log, step=step)
