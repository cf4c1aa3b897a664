"""AdaScale: each step counts as the number of base-batch steps that its gradient is worth."""

import math
from dataclasses import dataclass
from typing import Any

from sweeper.spec.gradient_noise import Noise, NoiseAverage, gain
from sweeper.spec.schedule import LRSchedule


@dataclass(slots=True, kw_only=True)
class AdaScale:
    """The state of AdaScale's learning rate.

    ``lr = gain * schedule.lr(floor(progress))``, then ``progress += gain``. The schedule, including
    its warmup, is that of the base batch; training ends when progress reaches its end.

    Attributes:
        schedule: the learning rate at the base batch.
        base_batch: the reference batch [examples].
        global_batch: examples per optimizer step [examples].
        average: moving average of the gradient's noise over steps.
        gain: of the last step, from 1 to ``global_batch / base_batch`` [dimensionless].
        progress: scale-invariant steps: the number of base-batch steps done so far [steps].

    Source:
        Johnson et al. 2020, arXiv:2007.05105, algorithm 1. Differs from the paper: training ends
        after the epoch in which the schedule ends.
    """

    schedule: LRSchedule
    base_batch: int
    global_batch: int
    average: NoiseAverage
    gain: float = 1.0
    progress: float = 0.0

    def step(self, noise: Noise) -> float:
        """Add the gradient noise of the step about to be taken, and return its learning rate."""
        self.average.add(noise)
        mean = self.average.mean()
        self.gain = gain(mean, base_batch=self.base_batch, global_batch=self.global_batch)
        lr = self.lr
        self.progress += self.gain
        return lr

    @property
    def lr(self) -> float:
        """The learning rate at the current progress and gain [dimensionless]."""
        return self.gain * self.schedule.lr(math.floor(self.progress))

    def state(self) -> dict[str, Any]:
        """The state to checkpoint."""
        average = self.average.state()
        return {"average": average, "gain": self.gain, "progress": self.progress}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.average = NoiseAverage(**state["average"])
        self.gain, self.progress = state["gain"], state["progress"]


def smoothing(batch_ratio: float) -> float:
    """Decay factor of the moving averages per step, ``max(1 - batch_ratio / 1000, 0)``.

    Args:
        batch_ratio: ``global_batch / base_batch`` [dimensionless].

    Source:
        Johnson et al. 2020, section 3 (as in fairscale's optim/adascale.py).
    """
    return max(1 - batch_ratio / 1000, 0.0)
