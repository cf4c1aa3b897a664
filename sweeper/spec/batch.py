"""The batch contract: a global batch split exactly over micro-batches, ranks and accumulation.

Pure: no clock, no disk, no cluster. Nothing here rounds a batch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

#: A micro-batch below this part of the largest possible, in more than this many steps, is refused:
#: it would train almost example by example.
_ABSURD_FRACTION, _ABSURD_STEPS = 8, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit:
    """How an optimizer step's examples are laid out over ranks and micro-steps.

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

    @property
    def layout(self) -> str:
        """Ranks x micro-batch x accumulation steps, as tables show it."""
        return f"{self.world_size}x{self.micro_batch}x{self.accumulation_steps}"

    def ranks_per_span(self, bn_span: int) -> int:
        """Ranks whose simultaneous micro-batches BatchNorm normalises together [count]."""
        return max(1, bn_span // self.micro_batch)


def split_global_batch(
    global_batch: int, *, world_size: int, micro_batch: int, bn_span: int
) -> BatchSplit:
    """Solve ``global_batch = micro_batch * accumulation_steps * world_size`` for the accumulation.

    Args:
        global_batch: examples per optimizer step [examples].
        world_size: data-parallel ranks [count].
        micro_batch: examples per rank per forward/backward [examples].
        bn_span: examples normalised together: a divisor of the micro-batch, or the size of the
            micro-batches of several ranks together [examples].

    Raises:
        ValueError: if the split is not exact; the text names the nearest global batches, or the
            nearest micro-batch, for which it is.
    """
    spannable = _spannable_micro_batches(micro_batch, bn_span=bn_span, world_size=world_size)
    if micro_batch not in spannable:
        together = f", or bn_span / n for n of the {world_size} ranks together" * (world_size > 1)
        nearest = min(spannable, key=lambda micro: abs(micro - micro_batch))
        msg = (
            f"micro_batch must be a multiple of bn_span{together}; got {micro_batch=}, "
            f"{bn_span=}. Use micro_batch={nearest}, or bn_span=micro."
        )
        raise ValueError(msg)
    unit = micro_batch * world_size
    if global_batch % unit:
        other = "other devices or num_nodes" if global_batch % world_size else "another micro_batch"
        msg = (
            f"batch must be a multiple of micro_batch x ranks = {micro_batch} x {world_size} = "
            f"{unit}; got batch={global_batch}. "
            f"{_nearest_batches(global_batch, unit)}, or use {other}."
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
        ValueError: if there is none, or all are absurdly small; the text names a remedy.
    """
    if limit < bn_span:
        msg = (
            f"micro_batch_limit must be at least bn_span; got micro_batch_limit={limit}, "
            f"{bn_span=}. Raise the limit or lower bn_span."
        )
        raise ValueError(msg)
    unit = world_size * bn_span
    if global_batch % unit:
        of, others = f"the number of ranks, {unit}", "other devices or num_nodes"
        if bn_span > 1:
            of = f"ranks x bn_span = {world_size} x {bn_span} = {unit}"
            others = "another bn_span (1 for a model without BatchNorm), devices or num_nodes"
        msg = (
            f"batch must be a multiple of {of}; got batch={global_batch}. "
            f"{_nearest_batches(global_batch, unit)}, or use {others}."
        )
        raise ValueError(msg)
    share = global_batch // world_size
    chosen = usable_micro_batches(share, limit=limit, bn_span=bn_span)[-1]
    is_tiny = chosen * _ABSURD_FRACTION < min(share, limit)
    if is_tiny and share // chosen > _ABSURD_STEPS:
        better = nearest_splitting_well(
            global_batch, world_size=world_size, limit=limit, bn_span=bn_span
        )
        msg = (
            f"batch must split into micro-batches of a practical size; got batch={global_batch}, "
            f"ranks={world_size}: the share of {share} per rank only divides "
            f"into micro-batches of {chosen} within micro_batch_limit={limit}. "
            f"Nearest batches that work: {', '.join(map(str, better))}; "
            f"or set micro_batch={chosen} to force it."
        )
        raise ValueError(msg)
    return chosen


def usable_micro_batches(rank_batch: int, *, limit: int, bn_span: int) -> list[int]:
    """Every micro-batch within the limit that divides a rank's share exactly, in ascending order.

    Args:
        rank_batch: examples per rank per optimizer step; a multiple of bn_span [examples].
        limit: the largest micro-batch allowed [examples].
        bn_span: examples normalised together [examples].
    """
    micro_batches = (divisor * bn_span for divisor in _divisors(rank_batch // bn_span))
    return sorted(micro for micro in micro_batches if micro <= limit)


@cache
def nearest_splitting_well(
    global_batch: int, *, world_size: int, limit: int, bn_span: int
) -> list[int]:
    """The nearest batches below and above whose micro-batch is at least half the largest allowed.

    Args:
        global_batch: examples per optimizer step [examples].
        world_size: data-parallel ranks [count].
        limit: the largest micro-batch allowed [examples].
        bn_span: examples normalised together [examples].
    """
    unit = world_size * bn_span
    here = global_batch // unit * unit

    def splits_well(batch: int) -> bool:
        share = batch // world_size
        return 2 * usable_micro_batches(share, limit=limit, bn_span=bn_span)[-1] >= min(
            share, limit
        )

    below = next((b for b in range(here - unit, 0, -unit) if splits_well(b)), None)
    above = next(b for b in range(here + unit, 3 * here + 2 * unit, unit) if splits_well(b))
    return [b for b in (below, above) if b is not None]


def smaller_micro_batch(micro_batch: int, *, divided: int, bn_span: int) -> int | None:
    """The largest micro-batch of at most half the current size that divides what it has to.

    None if there is none, because a BatchNorm span cannot be split.
    """
    at_most = micro_batch // bn_span // 2 * bn_span
    fitting = usable_micro_batches(divided, limit=at_most, bn_span=bn_span)
    return fitting[-1] if fitting else None


def steps_per_epoch(
    num_train_examples: int, global_batch: int, key: str = "data.num_train_examples"
) -> int:
    """Whole global batches in an epoch: ``num_train_examples // global_batch`` [steps].

    ValueError if the global batch is larger than the epoch, whose size has this key.
    """
    steps = num_train_examples // global_batch
    if steps == 0:
        msg = (
            f"batch must not exceed an epoch; got batch={global_batch}, "
            f"{key}={num_train_examples}. Use a smaller batch or a larger data set."
        )
        raise ValueError(msg)
    return steps


def whole_steps(length: int, global_batch: int, *, tokens_per_example: int | None = None) -> int:
    """Steps of a training of this many examples, or tokens if an example has so many [steps].

    ValueError if they are no whole number; the text names the nearest lengths that are.
    """
    unit, per_step, of_text = "examples", global_batch, ""
    if tokens_per_example:
        unit, per_step = "tokens", global_batch * tokens_per_example
        of_text = f", data.length={tokens_per_example}" * (tokens_per_example > 1)
    steps, rest = divmod(length, per_step)
    if rest:
        nearest = [f"{unit}={n * per_step}" for n in (steps, steps + 1) if n]
        msg = (
            f"{unit} must be a whole number of steps; got {unit}={length}, "
            f"batch={global_batch}{of_text}. Nearest that work: {', '.join(nearest)}."
        )
        raise ValueError(msg)
    return steps


def _divisors(number: int) -> set[int]:
    small = {d for d in range(1, math.isqrt(number) + 1) if number % d == 0}
    return small | {number // d for d in small}


def _spannable_micro_batches(near: int, *, bn_span: int, world_size: int) -> set[int]:
    """Micro-batches near this size that hold whole spans, or that form a span across ranks."""
    below = max(1, near // bn_span) * bn_span
    parts = {bn_span // ranks for ranks in _divisors(math.gcd(bn_span, world_size))}
    return {below, below + bn_span} | parts


def _nearest_batches(global_batch: int, unit: int) -> str:
    below = global_batch // unit * unit
    nearest = [b for b in (below, below + unit) if b > 0]
    return "Nearest that work: " + ", ".join(f"batch={b}" for b in nearest)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How the examples of each epoch are laid out over steps, ranks and micro-batches.

    When the batch grows, the accumulation steps grow; micro-batch and ranks stay the same. Within
    an epoch it changes where a whole number of the larger batches has been trained on, so that each
    step begins at a multiple of its batch.

    Attributes:
        split: layout of the optimizer steps of the first epoch that the run itself trains.
        bn_span: examples normalised together by BatchNorm [examples].
        num_train_examples: examples in the data set [examples].
        factor: each growth multiplies the batch by this [count].
        grown: 0-based epochs and steps of them that began with a growth, ascending.
        sizes: by what the first batch is multiplied from each of these on, and the learning rate
            where it is measured, else 1; empty: powers of `factor`.
        length: steps of the whole run, if it need not end with an epoch [steps].
        first: the 0-based epoch and step of it with which a branch begins; zeros without a parent.
        parent_batch: the batch before that, which its parent trained [examples].
    """

    split: BatchSplit
    bn_span: int
    num_train_examples: int
    factor: int = 1
    grown: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, float], ...] = ()
    length: int | None = None
    first: tuple[int, int] = (0, 0)
    parent_batch: int = 0

    def split_at(self, epoch: int, step: int = 0) -> BatchSplit:
        """The layout of a 0-based step of a 0-based epoch; of a parent's, its batch alone."""
        if (epoch, step) < self.first:
            return BatchSplit(micro_batch=self.parent_batch, accumulation_steps=1, world_size=1)
        if not self.grown:  # called several times per micro-batch
            return self.split
        count = sum(first <= (epoch, step) for first in self.grown)
        times = self.sizes[count - 1][0] if self.sizes and count else self.factor**count
        steps = self.split.accumulation_steps * times
        return replace(self.split, accumulation_steps=steps)

    def examples_in(self, epoch: int, step: int) -> int:
        """Examples of the first steps of a 0-based epoch [examples]."""
        phases = pairwise([*(first for first in self._firsts(epoch) if first < step), step])
        return sum((end - at) * self.split_at(epoch, at).global_batch for at, end in phases)

    def steps_in(self, epoch: int, examples: int) -> int:
        """Whole steps in the first examples of a 0-based epoch [steps]."""
        firsts = [(self.examples_in(epoch, first), first) for first in self._firsts(epoch)]
        before, first = max(at for at in firsts if at[0] <= examples)
        return first + (examples - before) // self.split_at(epoch, first).global_batch

    def _firsts(self, epoch: int) -> list[int]:
        """The 0-based steps of a 0-based epoch with which its batches begin, ascending."""
        return sorted({0, *(step for at, step in self.starts if at == epoch)})

    def phases(self, epoch: int) -> list[tuple[int, int]]:
        """The first step of each batch that a 0-based epoch trains, and the step after its last."""
        end = self.steps_at(epoch)
        return [*pairwise([*(first for first in self._firsts(epoch) if first < end), end])]

    def whole_steps_at(self, epoch: int) -> int:
        """Optimizer steps that fill a 0-based epoch [steps]."""
        last = self._firsts(epoch)[-1]
        rest = self.num_train_examples - self.examples_in(epoch, last)
        return last + steps_per_epoch(rest, self.split_at(epoch, last).global_batch)

    def whole_examples_at(self, epoch: int) -> int:
        """Examples of the steps that fill a 0-based epoch [examples]."""
        return self.examples_in(epoch, self.whole_steps_at(epoch))

    def steps_at(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch, of which the last may be cut short [steps]."""
        return self.steps_before(epoch + 1) - self.steps_before(epoch)

    def steps_before(self, epoch: int) -> int:
        """Optimizer steps before a 0-based epoch [steps]."""
        steps = self._whole_steps_before(epoch)
        return steps if self.length is None else min(steps, self.length)

    def _whole_steps_before(self, epoch: int) -> int:
        return sum(epochs * self.whole_steps_at(first) for first, epochs in self._lengths(epoch))

    def examples_before(self, epoch: int, step: int = 0) -> int:
        """Examples trained on before a 0-based epoch and in its first steps [examples]."""
        if self.length is not None and self._whole_steps_before(epoch) + step > self.length:
            epoch, step = self.place(self.length)
        whole = (n * self.whole_examples_at(first) for first, n in self._lengths(epoch))
        return sum(whole) + self.examples_in(epoch, step)

    def _lengths(self, epoch: int) -> Iterator[tuple[int, int]]:
        """First epoch and number of epochs of each layout, counting only epochs before it."""
        ends = [0, *(first for first in self._changes if first < epoch), epoch]
        return ((start, end - start) for start, end in pairwise(ends))

    @property
    def _changes(self) -> tuple[int, ...]:
        """0-based epochs that are laid out unlike the one before, ascending."""
        return tuple(sorted({at + n for at, step in self.starts for n in range(1 + (step > 0))}))

    @property
    def starts(self) -> list[tuple[int, int]]:
        """The 0-based epochs and steps of them with which the batches of the run begin."""
        return sorted({(0, 0), self.first, *self.grown})

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of an optimizer step of the run, and its step there, all 0-based."""
        return self._find_epoch(step, self.whole_steps_at)

    def _find_epoch(self, number: int, size: Callable[[int], int]) -> tuple[int, int]:
        """The 0-based epoch that so many steps or examples lead to, and how many lie in it."""
        start = 0
        for change in self._changes:
            if (whole := (change - start) * size(start)) > number:
                break
            start, number = change, number - whole
        epochs, rest = divmod(number, size(start))
        return start + epochs, rest

    def position(self, step: int) -> float:
        """Position in training of a 0-based optimizer step [epochs]."""
        epoch, rest = self.place(step)
        start = max(first for first in (0, *self._changes) if first <= epoch)
        whole = self.whole_examples_at(epoch)
        return start + ((epoch - start) * whole + self.examples_in(epoch, rest)) / whole

    def find_step(self, at: Fraction, unit: str) -> tuple[int, int]:
        """The first 0-based step, at or after a position, of a 0-based epoch.

        Args:
            at: the position [unit].
            unit: epochs, steps or examples.
        """
        epoch, examples = self._find_place(at, unit)
        batch = self.split_at(epoch, self.steps_in(epoch, examples)).global_batch
        return self.place(
            self._whole_steps_before(epoch) + self.steps_in(epoch, examples + batch - 1)
        )

    def _find_place(self, at: Fraction, unit: str) -> tuple[int, int]:
        """The 0-based epoch of a position, and the examples in it before that [examples]."""
        if unit == "epochs":
            return math.floor(at), math.ceil(at % 1 * self.num_train_examples)
        if unit == "examples":
            return self._find_epoch(math.ceil(at), self.whole_examples_at)
        epoch, step = self.place(math.ceil(at))
        return epoch, self.examples_in(epoch, step)

    def whole_steps(self, examples: int) -> int:
        """Steps that this many examples are [steps]; ValueError if they are no whole number."""
        epoch, rest = self._find_epoch(examples, self.whole_examples_at)
        step = self.steps_in(epoch, rest)
        before = self.examples_before(epoch, step)
        if before != examples:
            batch = self.split_at(epoch, step).global_batch
            msg = (
                f"examples must be a whole number of steps; got examples={examples}, which end "
                f"within a step of {batch}. Nearest that work: "
                f"{', '.join(f'examples={n}' for n in (before, before + batch) if n)}."
            )
            raise ValueError(msg)
        return self.steps_before(epoch) + step

    def with_growth(self, at: Fraction, unit: str, power: int) -> "BatchPlan":
        """The same with another power of `factor` where it first can be from a position on."""
        sizes = (*self.sizes, (self.factor**power, 1.0))
        batch = self.split.global_batch * self.factor**power
        larger = self.split.global_batch * max(times for times, _ in ((1, 1.0), *sizes)[-2:])
        before = [(epoch, self.examples_in(epoch, step)) for epoch, step in self.grown]
        epoch, examples = max(self._find_place(at, unit), *before[-1:], (0, 0))
        examples = -(-examples // larger) * larger
        if examples and examples + batch > self.num_train_examples:
            epoch, examples = epoch + 1, 0
        first = (epoch, self.steps_in(epoch, examples))
        return replace(self, grown=(*self.grown, first), sizes=sizes)
