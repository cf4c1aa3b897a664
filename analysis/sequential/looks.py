"""Confidence intervals of a mean that hold at all looks together, even with few replicates.

The replicates are taken as Gaussian, of unknown variance. The level is spent over the looks; the
critical value of Student's t at each follows exactly from the joint distribution of all.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import optimize, special, stats

from analysis.stats.replicates import Array

#: Power of the spending: when a share of the replicates is there, looks may have spent
#: ``level * share ** POWER``, which is close to what O'Brien and Fleming spend.
POWER = 3.0

#: Level of a question: 5 % minus a reserve for noise that is skewed and of unequal spread, with
#: which Student's t errs more often than its level.
LEVEL = 0.03

_CELLS = 500


@dataclass(frozen=True, slots=True)
class Looks:
    """When a question is looked at.

    Attributes:
        at: rising numbers of seeds; the last is all that there are.
        level: error rate over all looks, both sides and all comparisons.
    """

    at: tuple[int, ...]
    level: float = LEVEL

    @classmethod
    def plan(cls, step: int, *, first: int, last: int) -> "Looks":
        """At the first number of seeds, then after each step, and at the last."""
        return cls((*range(min(first, last), last, step), last))

    def half_width(self, n: int, level: float) -> float:
        """Half the width of an interval after n seeds [standard errors]."""
        return critical_values(self.at, level)[self.at.index(n)]


@dataclass(frozen=True, slots=True)
class Interval:
    """A contrast after some seeds: its mean, and how far the truth may be from it.

    Where a run diverged, which is the worst result, it is that of the median.

    Attributes:
        mean: over seeds; the median if runs diverged.
        low: lower end of the interval; minus infinity where every seed gives the same.
        high: upper end; infinity where every seed gives the same.
        spread: standard deviation over seeds; infinite if runs diverged.
        n: seeds.
        seeds: the value of each, if runs diverged; not a number where both sides are the worst.
    """

    mean: float
    low: float
    high: float
    spread: float
    n: int
    seeds: Array | None = None

    @classmethod
    def from_seeds(cls, values: Array, looks: Looks, level: float) -> "Interval":
        """From a value of each seed; infinite where a run diverged.

        The median lies between two ordered values by the binomial distribution, at the level that
        Student's t has at this look. A seed that is not a number counts against either end.
        """
        n = len(values)
        width = looks.half_width(n, level)
        if not np.isfinite(values).all():
            rank = int(stats.binom.ppf(stats.t.sf(width, n - 1), n, 0.5))
            low = (
                np.sort(np.where(np.isnan(values), -np.inf, values))[rank - 1] if rank else -np.inf
            )
            high = np.sort(np.where(np.isnan(values), np.inf, values))[n - rank] if rank else np.inf
            median = np.median(np.where(np.isnan(values), 0.0, values))
            return cls(float(median), float(low), float(high), np.inf, n, values)
        mean, spread = float(values.mean()), float(values.std(ddof=1))
        half = width * spread / np.sqrt(n)
        if spread <= 1e-9 * float(np.abs(values).max()):
            half, spread = np.inf, 0.0
        return cls(mean, mean - half, mean + half, spread, n)

    def negate(self) -> "Interval":
        """Of the same contrast with its sign changed."""
        seeds = None if self.seeds is None else -self.seeds
        return Interval(-self.mean, -self.high, -self.low, self.spread, self.n, seeds)

    def chance_between(self, lower: float, upper: float, last: int, width: float) -> float:
        """The chance that it lies between two bounds at the last seed, given these seeds.

        `last` is the number of seeds at the end, `width` the half width then [standard errors].
        """
        if self.seeds is not None:
            rank = stats.binom.ppf(stats.t.sf(width, last - 1), last, 0.5)
            above = (self.seeds > lower) | np.isneginf(lower)  # what diverged is above no number
            inside = int(min(above.sum(), ((self.seeds < upper) | np.isposinf(upper)).sum()))
            more, beliefs = last - self.n, (inside + 1, self.n - inside + 1)
            found = stats.betabinom.sf(last - rank - inside, more, *beliefs)
            return float(found) if rank > 0 else 0.0
        half = width * self.spread / np.sqrt(last)
        error = self.spread * np.sqrt((last - self.n) / (last * self.n))
        if not (error > 0 and lower + half < upper - half):
            return 0.0
        ends = (np.array([lower + half, upper - half]) - self.mean) / error
        below, above = special.stdtr(self.n - 1, ends)
        return float(above - below)


@cache
def critical_values(
    looks: tuple[int, ...], level: float, power: float = POWER
) -> tuple[float, ...]:
    """Critical values of Student's t at each look, such that all looks together keep the level.

    Without an effect ``r = sum / sqrt(sum of squares)`` is a Markov chain: after n values the next
    is ``r cos(phi) + sin(phi)``, where ``sqrt(n) tan(phi)`` has Student's distribution with n
    degrees of freedom and does not depend on r (Basu: the sum of squares is complete for the
    variance, and r is ancillary). The distribution of r where no look has decided yet is kept in
    cells and carried from value to value.

    Args:
        looks: rising numbers of replicates, the first 3 or more.
        level: chance of going beyond at any look, on either side.
        power: of the spending.

    Returns:
        Critical values of ``|t|``, with degrees of freedom 1 less than replicates, at each look.

    Source:
        Kim & DeMets 1987, Biometrika 74, 149-154 (the spending); Jennison & Turnbull 1991,
        Biometrika 78, 133-141 (exact sequential t tests); the chain in r is ours.
    """
    first, last = looks[0], looks[-1]
    edges, chance, found, before = np.empty(0), np.empty(0), list[float](), 0.0
    for n in range(first, last + 1):
        spent = level * (n / last) ** power if n in looks else before
        beyond = np.inf
        if n == first:
            beyond = float(stats.t.isf(spent / 2, n - 1))
        elif n in looks:
            beyond = _find_bound(edges, chance, n, spent - before)
        found += [beyond] if n in looks else []
        # Edges of r after n values, as far as |t| may go.
        most = np.arcsin(1.0 if np.isinf(beyond) else _r_of_t(beyond, n) / np.sqrt(n))
        after = np.sqrt(n) * np.sin(np.linspace(-most, most, _CELLS + 1))
        if n == first:
            with np.errstate(divide="ignore"):
                t = after * np.sqrt((n - 1) / np.maximum(n - after**2, 0))
            chance = np.diff(stats.t.cdf(t, n - 1))
        else:
            chance = np.diff(_chance_below(after, edges, n) @ chance)
        edges, before = after, spent
    return tuple(found)


def _find_bound(edges: Array, chance: Array, n: int, part: float) -> float:
    """The bound that `|t|` exceeds for the first time at n values with this chance."""

    def excess(log_t: float) -> float:
        end = _r_of_t(float(np.exp(log_t)), n)
        below, above = _chance_below(np.array([-end, end]), edges, n) @ chance
        return float(chance.sum() - (above - below) - part)

    found = optimize.root_scalar(excess, bracket=(-3.0, 30.0), xtol=1e-9)
    return float(np.exp(found.root))


def _chance_below(ends: Array, edges: Array, n: int) -> Array:
    """The chance that r after n values is at most each end, from the middle of each cell before."""
    r = (edges[1:] + edges[:-1]) / 2
    length, turn = np.sqrt(1 + r**2), np.arctan(r)  # r cos(phi) + sin(phi), as a single sine
    angle = np.arcsin(np.clip(ends[:, None] / length, -1, 1))
    phi = np.linspace(-np.pi / 2, np.pi / 2, 4001)
    table = stats.t.cdf(np.sqrt(n - 1) * np.tan(phi), n - 1)

    def up_to(at: Array) -> Array:
        return np.interp(at, phi, table)

    falling = up_to(-np.pi - angle - turn) + up_to(np.pi - angle - turn)
    return up_to(angle - turn) + 1 - falling


def _r_of_t(t: float, n: int) -> float:
    return t * np.sqrt(n / (t**2 + n - 1))
