"""A rank's part in the batch plan of a run: what it trains on in each epoch, and at what rate."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.spec.batch import BatchSplit
from sweeper.spec.config import Start
from sweeper.spec.run_spec import RunSpec, with_growths
from sweeper.spec.worker_args import KEPT
from sweeper.store.trunks import trunk_file

if TYPE_CHECKING:
    from lightning_modules.data.token_fill import Filled


class RankPlan:
    """Micro-batch, accumulation, ranks and steps of every epoch, for the loader and the callbacks.

    All of it follows from the spec, except what a run decides while it trains: when its batch grows
    (`grow`), and where in an epoch it resumes.

    Attributes:
        resumed_at: the 0-based epoch in which this process begins, and the optimizer steps of it
            that were taken before [steps].
        filled: the steps of a 0-based epoch, if batches are in tokens; set by the loader. The rest
            of the plan then counts tokens as if each step had all of its batch.
    """

    def __init__(self, spec: RunSpec, *, rank: int) -> None:
        self._spec = spec
        self.resumed_at = (0, 0)
        self.filled: Callable[[int], Filled] | None = None
        self._indices = lru_cache(maxsize=2)(micro_batch_indices)  # asked for each micro-batch
        self.rank, self.bn_span, self.seed = rank, spec.bn_span, spec.config.seed
        self.num_train_examples = spec.config.data.num_train_examples
        self.branch, self.trunk_id = spec.config.branch, spec.trunk_id
        self.loss_items = spec.config.loss_items
        self.epoch_tokens = spec.config.batch_unit and spec.config.epoch_tokens
        self.has_own_module = spec.config.has_own_module
        self.has_own_code = spec.config.has_own_code
        kept = spec.config.keep_checkpoint
        asked = [Fraction(str(at)) for at in kept] if isinstance(kept, tuple) else []
        self._kept = {spec.batch_plan.find_step(at, "epochs"): float(at) for at in asked}

    def split(self, epoch: int, step: int = 0) -> BatchSplit:
        """How a 0-based step of a 0-based epoch is laid out; of a branch's first, if before it."""
        plan = self._spec.batch_plan
        return plan.split_at(*max((epoch, step), plan.first))

    @property
    def first(self) -> tuple[int, int]:
        """The 0-based epoch and step of it with which a branch begins."""
        return self._spec.batch_plan.first

    def steps(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch; of a branch's first, if before it [steps]."""
        return self._spec.steps_at(max(epoch, self._spec.batch_plan.first[0]))

    def phases(self, epoch: int) -> list[tuple[int, int]]:
        """As `BatchPlan.phases`; of a branch's first epoch, if before it."""
        plan = self._spec.batch_plan
        return plan.phases(max(epoch, plan.first[0]))

    def examples_in(self, epoch: int, step: int) -> int:
        """Examples of the first steps of a 0-based epoch, over all ranks [examples]."""
        plan = self._spec.batch_plan
        return plan.examples_in(max(epoch, plan.first[0]), step)

    def micro_steps(self, epoch: int, step: int) -> int:
        """Micro-batches of a rank in the first steps of a 0-based epoch [count]."""
        split = self.split(epoch)
        return self.examples_in(epoch, step) // (split.micro_batch * split.world_size)

    def steps_in(self, epoch: int, micro_steps: int) -> int:
        """Whole steps in a rank's first micro-batches of a 0-based epoch [steps]."""
        plan, split = self._spec.batch_plan, self.split(epoch)
        examples = micro_steps * split.micro_batch * split.world_size
        return plan.steps_in(max(epoch, plan.first[0]), examples)

    def is_evaluated(self, epoch: int, step: int) -> bool:
        """Whether the run is evaluated after this many steps of a 0-based epoch."""
        return self._spec.evaluations.is_at(epoch, step)

    def is_evaluated_at(self, epoch: int, micro_step: int) -> bool:
        """Whether it is evaluated after the step that a micro-step belongs to, all 0-based."""
        return self.is_evaluated(epoch, self.steps_in(epoch, micro_step) + 1)

    def is_saved(self, epoch: int, step: int) -> bool:
        """Whether the run is saved after this many steps of a 0-based epoch."""
        return self._spec.checkpoints.is_at(epoch, step)

    def kept_files(self, run: Path, epoch: int, step: int) -> list[Path]:
        """Where the checkpoint after this many steps of a 0-based epoch is kept, if anywhere.

        For branches that is in the run's folder, for runs of other lengths with their trunk.
        """
        spec, keep = self._spec, self._spec.config.keep_checkpoint
        place = (epoch + 1, 0) if step == self.steps(epoch) else (epoch, step)
        names = {place: epoch + 1} if keep == "all" and not place[1] else self._kept
        found = [run / KEPT.format(f"{names[place]:.15g}")] if place in names else []
        steps = spec.batch_plan.steps_before(epoch) + step
        if spec.trunk_id and steps in {*spec.shorter, spec.trunk_steps}:
            found.append(trunk_file(spec, Start(run=run.name, steps=steps), run.parents[1]))
        return found

    def evaluations_after(self, epoch: int, step: int) -> int:
        """Evaluations to come after this many steps of a 0-based epoch."""
        return self._spec.evaluations.count_after(epoch, step)

    def micro_batches(self, epoch: int, step: int = 0) -> range:
        """Indices in a step's order of this rank's micro-batches, by `micro_batch_indices`."""
        return self._indices(self.split(epoch, step), self.bn_span)[self.rank]

    def examples(self, epoch: int, step: int = 0) -> int:
        """Examples trained on before a 0-based epoch and in its first steps [examples]."""
        return self._spec.batch_plan.examples_before(epoch, step)

    def position(self, steps: int) -> float:
        """Position in training after this many optimizer steps of the run [epochs]."""
        return self._spec.batch_plan.position(steps)

    def epochs_completed(self, epoch: int, step: int) -> int:
        """Whole epochs up to this many steps of a 0-based epoch [epochs]."""
        return epoch + (step == self._spec.batch_plan.whole_steps_at(epoch))

    def first_example(self, epoch: int, micro_step: int) -> int:
        """The place in the order of a 0-based epoch where a 0-based micro-step of it begins."""
        return self.places(epoch, micro_step)[0]

    def num_examples(self, epoch: int, micro_step: int) -> int:
        """Examples of the micro-batch of a 0-based micro-step of a 0-based epoch [examples]."""
        if not self.filled:
            return self.split(epoch).micro_batch
        first, end = self.places(epoch, micro_step)
        return end - first

    def places(self, epoch: int, micro_step: int) -> tuple[int, int]:
        """Where a micro-step begins and ends in the order of an epoch, all 0-based."""
        step = self.steps_in(epoch, micro_step)
        index = self.micro_batches(epoch, step)[micro_step - self.micro_steps(epoch, step)]
        if self.filled:
            first, end = self.filled(epoch).places[step, index : index + 2]
            return int(first), int(end)
        size = self.split(epoch).micro_batch
        first = self.examples_in(epoch, step) + index * size
        return first, first + size

    def step(self, epoch: int, micro_step: int) -> int:
        """The run's optimizer step that a micro-step of an epoch belongs to, all 0-based."""
        return self._spec.batch_plan.steps_before(epoch) + self.steps_in(epoch, micro_step)

    def lr(self, step: int) -> float:
        """Scheduled learning rate of a 0-based optimizer step of the run."""
        return self._spec.schedule.lr(step)

    @property
    def grown(self) -> tuple[int, ...]:
        """0-based epochs that began with a growth of the batch, as far as they are known."""
        return tuple(epoch for epoch, _ in self._spec.batch_plan.grown)

    @property
    def sizes(self) -> tuple[tuple[int, float], ...]:
        """As of `BatchPlan`."""
        return self._spec.batch_plan.sizes

    def grow(self, grown: tuple[int, ...], sizes: tuple[tuple[int, float], ...] = ()) -> None:
        """Multiply the batch at the start of exactly these 0-based epochs, as `with_growths`."""
        self._spec = with_growths(self._spec, grown, sizes)

    def first_step(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch that were taken before this process began [steps]."""
        resumed, step = self.resumed_at
        return step if epoch == resumed else 0


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
