"""Which examples a step holds whose batch is a number of tokens, and how they are parted."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


class Filled(NamedTuple):
    """The steps of an epoch.

    Attributes:
        places: where the micro-batches of each step begin in the epoch's order, and where its last
            ends, shape (steps, micro-batches + 1).
        tokens: of each step, shape (steps,).
    """

    places: Counts
    tokens: Counts


class TokenFill:
    """Fills each step with the longest run of consecutive examples whose tokens fit the budget.

    So a step's examples depend on the order alone. Its micro-batches part its tokens evenly: an
    example is in the part in which it begins.

    Args:
        tokens: of each example of a 0-based epoch, in its order, shape (num_examples,).
        budget: the largest number of tokens of a step [tokens].
        parts: micro-batches of a step, on all ranks [count].
        steps: of an epoch; fewer than there are tokens for [steps].
    """

    def __init__(
        self, tokens: Callable[[int], Counts], *, budget: int, parts: int, steps: int
    ) -> None:
        self._tokens, self._budget, self._parts, self._steps = tokens, budget, parts, steps
        self.epoch = lru_cache(maxsize=2)(self._fill)  # asked for each micro-batch

    def _fill(self, epoch: int) -> Filled:
        """The steps of a 0-based epoch; ValueError if the examples do not fill them."""
        behind = np.concatenate([[0], np.cumsum(self._tokens(epoch))])  # tokens before each example
        places = np.zeros((self._steps, self._parts + 1), dtype=np.int64)
        first = 0
        for step in range(self._steps):
            end = int(np.searchsorted(behind, behind[first] + self._budget, side="right")) - 1
            if end == first:
                msg = (
                    f"steps of {self._budget} tokens must be filled by the data's examples, as "
                    f"planned; got one of {behind[first:].max() - behind[first]} tokens, or too "
                    "few. If the data have changed, repeat the command with another results "
                    "folder, which counts again."
                )
                raise ValueError(msg)
            starts = (behind[first:end] - behind[first]) * self._parts
            shares = np.arange(self._parts) * (behind[end] - behind[first])
            places[step, :-1] = first + np.searchsorted(starts, shares)
            places[step, -1] = first = end
        return Filled(places, behind[places[:, -1]] - behind[places[:, 0]])
