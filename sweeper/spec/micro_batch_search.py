"""The largest micro-batch that fits: what to try next, given what is known to fit and what not.

Pure: no clock, no disk, no cluster. A larger micro-batch never needs less memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: The first try is at most this part of the largest usable micro-batch: doubling does the rest.
_FIRST_PART = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known about the micro-batches that fit.

    Attributes:
        fits: the largest known to fit; 0 if none is [examples].
        fails: the smallest known not to fit; None if none is [examples].
    """

    fits: int = 0
    fails: int | None = None

    @classmethod
    def of(cls, fitting: Iterable[int], failing: Iterable[int]) -> "Bounds":
        """The bounds from all tries; a failure takes precedence over a fit at its size or above."""
        fails = min(failing, default=None)
        below = (m for m in fitting if fails is None or m < fails)
        return cls(fits=max(below, default=0), fails=fails)


NOTHING_KNOWN = Bounds()


def next_try(usable: Sequence[int], bounds: Bounds) -> int | None:
    """The micro-batch to try next, or None when the largest that fits is known.

    Upwards by at most doubling, so that no try asks for much more than what there is; then by
    halving what lies between the largest that fits and the smallest that does not.

    Args:
        usable: the micro-batches to choose from, ascending [examples].
        bounds: what is known of them.
    """
    fits, fails = bounds.fits, bounds.fails
    left = [m for m in usable if m > fits and (fails is None or m < fails)]
    if not left:
        return None
    if fails is not None:
        return left[len(left) // 2]
    reach = 2 * fits if fits else usable[-1] // _FIRST_PART
    return max((m for m in left if m <= reach), default=left[0])


def largest_fitting(usable: Sequence[int], bounds: Bounds) -> int | None:
    """The largest micro-batch known to fit, or None if none of them is known to."""
    return max((m for m in usable if m <= bounds.fits), default=None)
