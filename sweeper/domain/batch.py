"""The batch contract: a global batch as micro-batches, ranks and accumulation steps, exactly.

Pure: no clock, no disk, no cluster. Nothing here rounds a batch.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit:
    """How one optimizer step's examples are laid out over ranks and micro-steps.

    Attributes:
        micro_batch: examples per rank per forward/backward [examples].
        accumulation_steps: micro-batches per rank per optimizer step [count].
        world_size: data-parallel ranks [count].
    """

    micro_batch: int
    accumulation_steps: int
    world_size: int

    @property
    def global_batch(self) -> int:
        """Examples per optimizer step, over all ranks [examples]."""
        return self.micro_batch * self.accumulation_steps * self.world_size

    @property
    def rank_batch(self) -> int:
        """Examples per rank per optimizer step [examples]."""
        return self.micro_batch * self.accumulation_steps


def split_global_batch(
    global_batch: int, *, world_size: int, micro_batch: int, bn_span: int
) -> BatchSplit:
    """Solve ``global_batch = micro_batch * accumulation_steps * world_size`` for given parts.

    Args:
        global_batch: examples per optimizer step [examples].
        world_size: data-parallel ranks [count].
        micro_batch: examples per rank per forward/backward [examples].
        bn_span: examples normalised together; divides the micro-batch [examples].

    Raises:
        ValueError: if the parts cannot make the global batch exactly; the text names the
            nearest global batches that can be made.
    """
    if micro_batch % bn_span:
        msg = (
            f"micro_batch must be a multiple of bn_span; got {micro_batch=}, {bn_span=}. "
            f"Use micro_batch={_nearest_multiple(micro_batch, bn_span)}, or bn_span=micro."
        )
        raise ValueError(msg)
    unit = micro_batch * world_size
    if global_batch % unit:
        msg = (
            f"batch must be a multiple of micro_batch x ranks = {micro_batch} x {world_size} = "
            f"{unit}; got batch={global_batch}. "
            f"{_nearest_batches(global_batch, unit)}, or use another micro_batch."
        )
        raise ValueError(msg)
    return BatchSplit(
        micro_batch=micro_batch,
        accumulation_steps=global_batch // unit,
        world_size=world_size,
    )


def choose_micro_batch(global_batch: int, *, world_size: int, limit: int, bn_span: int) -> int:
    """The largest micro-batch within the limit that splits the global batch exactly.

    It divides the rank's share ``global_batch / world_size`` and is a multiple of ``bn_span``.

    Args:
        global_batch: examples per optimizer step [examples].
        world_size: data-parallel ranks [count].
        limit: the largest micro-batch allowed [examples].
        bn_span: examples normalised together [examples].

    Raises:
        ValueError: if no micro-batch does; the text names the nearest batches that work.
    """
    if limit < bn_span:
        msg = (
            f"micro_batch_limit must be at least bn_span; got micro_batch_limit={limit}, "
            f"{bn_span=}. Raise the limit or lower bn_span."
        )
        raise ValueError(msg)
    unit = world_size * bn_span
    if global_batch % unit:
        msg = (
            f"batch must be a multiple of ranks x bn_span = {world_size} x {bn_span} = {unit}; "
            f"got batch={global_batch}. "
            f"{_nearest_batches(global_batch, unit)}, or use another bn_span or devices."
        )
        raise ValueError(msg)
    spans = global_batch // unit
    chosen = _largest_divisor(spans, at_most=limit // bn_span) * bn_span
    if _is_absurd(chosen, share=global_batch // world_size, limit=limit):
        better = _nearest_splittable(global_batch, unit=unit, limit=limit, bn_span=bn_span)
        msg = (
            f"batch must split into micro-batches of a useful size; got batch={global_batch}, "
            f"whose share of {global_batch // world_size} on {world_size} rank(s) only divides "
            f"into micro-batches of {chosen} within micro_batch_limit={limit}. "
            f"Nearest batches that work: {', '.join(map(str, better))}; "
            f"or set micro_batch={chosen} to insist."
        )
        raise ValueError(msg)
    return chosen


def smaller_micro_batch(split: BatchSplit, bn_span: int) -> int | None:
    """The largest micro-batch of at most half the size that makes the same global batch.

    None if there is none: the BatchNorm span cannot be cut.
    """
    spans = split.rank_batch // bn_span
    at_most = split.micro_batch // bn_span // 2
    return _largest_divisor(spans, at_most=at_most) * bn_span if at_most else None


def steps_per_epoch(num_train_examples: int, global_batch: int) -> int:
    """Whole global batches in an epoch: ``num_train_examples // global_batch`` [steps].

    Raises:
        ValueError: if the global batch is larger than the epoch.
    """
    steps = num_train_examples // global_batch
    if steps == 0:
        msg = (
            f"batch must not exceed the epoch's {num_train_examples} examples; "
            f"got batch={global_batch}. Use a smaller batch or a larger data set."
        )
        raise ValueError(msg)
    return steps


# A share many times the micro-batch it is cut into would be trained almost example by example.
_ABSURD_FRACTION = 8


def _is_absurd(micro_batch: int, *, share: int, limit: int) -> bool:
    return micro_batch * _ABSURD_FRACTION < min(share, limit)


def _largest_divisor(number: int, *, at_most: int) -> int:
    return max(d for d in _divisors(number) if d <= at_most)


def _divisors(number: int) -> set[int]:
    small = {d for d in range(1, math.isqrt(number) + 1) if number % d == 0}
    return small | {number // d for d in small}


def _nearest_multiple(number: int, unit: int) -> int:
    return max(unit, round(number / unit) * unit)


def _nearest_batches(global_batch: int, unit: int) -> str:
    below = global_batch // unit * unit
    nearest = [b for b in (below, below + unit) if b > 0]
    return "Nearest that work: " + ", ".join(f"batch={b}" for b in nearest)


def _nearest_splittable(global_batch: int, *, unit: int, limit: int, bn_span: int) -> list[int]:
    """The nearest batch below and above whose micro-batch uses at least half of the limit."""

    def works(batch: int) -> bool:
        share = batch // unit * bn_span
        micro = _largest_divisor(batch // unit, at_most=limit // bn_span) * bn_span
        return 2 * micro >= min(share, limit)

    below = next((b for b in range(global_batch - unit, 0, -unit) if works(b)), None)
    above = next(b for b in range(global_batch + unit, 3 * global_batch + unit, unit) if works(b))
    return [b for b in (below, above) if b is not None]
