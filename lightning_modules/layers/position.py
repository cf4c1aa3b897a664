"""The position of a micro-batch in the run, for layers that must not depend on the layout."""

import torch


def is_in_backward() -> bool:
    """Whether a backward pass is running: activation checkpointing repeats forward passes in it.

    private: torch has no public name for it.
    """
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


class StepPosition:
    """Moved on before each training pass; shared by the layers of one model.

    Epoch and step of the epoch are 0-based; `first_example` is the micro-batch's place in the
    epoch's order, in which its `examples` are consecutive; `moves` counts micro-batches so far.
    """

    def __init__(self) -> None:
        self.epoch = self.step = self.first_example = self.examples = self.moves = 0

    def move(self, *, epoch: int, step: int, first_example: int, examples: int) -> None:
        """Go to a micro-batch."""
        self.epoch, self.step = epoch, step
        self.first_example, self.examples = first_example, examples
        self.moves += 1

    def leave(self) -> None:
        """Be in no training micro-batch, as during validation."""
        self.examples = 0
