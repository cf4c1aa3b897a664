"""A rank's part in the batch plan of a run: what it trains on in each epoch, and at what rate."""

from functools import lru_cache
from typing import NamedTuple

from sweeper.spec.batch import BatchSplit
from sweeper.spec.run_spec import RunSpec, with_growths


class _Epoch(NamedTuple):
    """What is looked up about an epoch at each micro-batch.

    Attributes:
        split: layout of its optimizer steps.
        steps: of the epoch [steps].
        steps_before: of the epochs before it [steps].
        firsts: places in a step's order where this rank's micro-batches begin [examples].
    """

    split: BatchSplit
    steps: int
    steps_before: int
    firsts: list[int]


class RankPlan:
    """Micro-batch, accumulation, ranks and steps of every epoch, for the loader and the callbacks.

    All of it follows from the spec, except what a run decides while it trains: when its batch grows
    (`grow`), and where in an epoch it resumes (`resume`).
    """

    def __init__(self, spec: RunSpec, *, rank: int) -> None:
        self._spec = spec
        self._resumed = (0, 0)
        self._epoch = lru_cache(maxsize=2)(self._laid_out)
        self.rank, self.bn_span, self.seed = rank, spec.bn_span, spec.config.seed
        self.num_train_examples = spec.config.data.num_train_examples
        self.has_own_module = spec.config.has_own_module

    def split(self, epoch: int) -> BatchSplit:
        """How an optimizer step of a 0-based epoch is laid out."""
        return self._epoch(epoch).split

    def steps(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch [steps]."""
        return self._epoch(epoch).steps

    def spans(self, epoch: int) -> int:
        """BatchNorm spans of a 0-based epoch, over all ranks [count]."""
        return self.steps(epoch) * self.split(epoch).global_batch // self.bn_span

    def micro_batches(self, epoch: int) -> range:
        """Indices in a step's order of this rank's micro-batches, by `micro_batch_indices`."""
        return micro_batch_indices(self.split(epoch), self.bn_span)[self.rank]

    def examples_before(self, epoch: int) -> int:
        """Examples trained on before a 0-based epoch, as far as growths are known [examples]."""
        return self._spec.batch_plan.examples_before(epoch)

    def first_example(self, epoch: int, micro_step: int) -> int:
        """The place in the order of a 0-based epoch where a 0-based micro-step of it begins."""
        laid_out = self._epoch(epoch)
        step, in_step = divmod(micro_step, len(laid_out.firsts))
        return step * laid_out.split.global_batch + laid_out.firsts[in_step]

    def step(self, epoch: int, micro_step: int) -> int:
        """The run's optimizer step that a micro-step of an epoch belongs to, all 0-based."""
        laid_out = self._epoch(epoch)
        return laid_out.steps_before + micro_step // len(laid_out.firsts)

    def lr(self, step: int) -> float:
        """Scheduled learning rate of a 0-based optimizer step of the run."""
        return self._spec.schedule.lr(step)

    @property
    def grown(self) -> tuple[int, ...]:
        """0-based epochs that began with a growth of the batch, as far as they are known."""
        return self._spec.batch_plan.grown

    def grow(self, grown: tuple[int, ...]) -> None:
        """Multiply the batch at the start of exactly these 0-based epochs."""
        self._spec = with_growths(self._spec, grown)
        self._epoch.cache_clear()

    def resume(self, epoch: int, step: int) -> None:
        """Resume in a 0-based epoch after some of its optimizer steps."""
        self._resumed = (epoch, step)

    @property
    def first_epoch(self) -> int:
        """The 0-based epoch that this process begins in."""
        return self._resumed[0]

    def first_step(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch that were taken before this process began [steps]."""
        resumed, step = self._resumed
        return step if epoch == resumed else 0

    def _laid_out(self, epoch: int) -> _Epoch:
        split = self._spec.batch_plan.split_at(epoch)
        mine = micro_batch_indices(split, self.bn_span)[self.rank]
        return _Epoch(
            split=split,
            steps=self._spec.steps_at(epoch),
            steps_before=self._spec.batch_plan.steps_before(epoch),
            firsts=[index * split.micro_batch for index in mine],
        )


def micro_batch_indices(split: BatchSplit, bn_span: int) -> list[range]:
    """Indices in a step's order of each rank's micro-batches, in the order of its micro-steps.

    A rank's indices are consecutive. Only ranks that normalise together take turns, so that they
    all work on the same span at the same time.
    """
    together, steps = split.ranks_per_span(bn_span), split.accumulation_steps
    firsts = (
        rank // together * together * steps + rank % together for rank in range(split.world_size)
    )
    return [range(first, first + together * steps, together) for first in firsts]
