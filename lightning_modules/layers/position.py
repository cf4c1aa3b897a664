"""The position of a micro-batch in the run, for layers that must not depend on the layout."""


class StepPosition:
    """Moved on before each training pass; shared by the layers of one model.

    Attributes:
        epoch: 0-based epoch.
        step: 0-based optimizer step of the epoch.
        first_example: place in the epoch's order of the micro-batch's first example.
        examples: examples of the micro-batch, which follow each other in that order [examples].
        moves: micro-batches seen so far [count].
    """

    def __init__(self) -> None:
        self.epoch = self.step = self.first_example = self.examples = self.moves = 0

    def move(self, *, epoch: int, step: int, first_example: int, examples: int) -> None:
        """Go to a micro-batch."""
        self.epoch, self.step = epoch, step
        self.first_example, self.examples = first_example, examples
        self.moves += 1
