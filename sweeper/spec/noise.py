"""Gradient noise, estimated from the gradients of parts of a batch. Pure arithmetic."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.spec.schedule import LRSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Unbiased estimates from a batch. Either may be negative, so average before dividing.

    Attributes:
        signal: squared norm of the true gradient, ``|G|**2``.
        variance: ``tr(Sigma)``, the variance of an example's gradient, summed over the weights.
    """

    signal: float
    variance: float


def noise_of_batch(mean_square: float, square_of_mean: float, *, span: int, parts: int) -> Noise:
    """Noise statistics from the gradients of equal parts of a batch.

    With ``n`` parts of ``b`` examples::

        signal   = (n square_of_mean - mean_square) / (n - 1)
        variance = (mean_square - square_of_mean) b n / (n - 1)

    Args:
        mean_square: mean of the parts' squared gradient norms.
        square_of_mean: squared norm of the whole batch's gradient, the mean of the parts'.
        span: examples of a part [examples].
        parts: parts of the batch, 2 or more [count].

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, appendix A.1, for the batches b and n b; the same
        estimates as Johnson et al. 2020, arXiv:2007.05105, section 3.
    """
    return Noise(
        signal=(parts * square_of_mean - mean_square) / (parts - 1),
        variance=(mean_square - square_of_mean) * span * parts / (parts - 1),
    )


@dataclass(slots=True, kw_only=True)
class NoiseAverage:
    """Moving averages over optimizer steps, with bias correction by the sum of the weights.

    Attributes:
        smoothing: decay factor per step; 1 gives the mean of all steps [dimensionless].
        signal: weighted sum of the signals.
        variance: weighted sum of the variances.
        weight: sum of the weights.
    """

    smoothing: float
    signal: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def add(self, noise: Noise) -> None:
        """Add the estimates of a step."""
        share = 1.0 if self.smoothing == 1 else 1 - self.smoothing
        self.signal = self.smoothing * self.signal + share * noise.signal
        self.variance = self.smoothing * self.variance + share * noise.variance
        self.weight = self.smoothing * self.weight + share

    def mean(self) -> Noise:
        """The average so far."""
        return Noise(signal=self.signal / self.weight, variance=self.variance / self.weight)

    def state(self) -> dict[str, float]:
        """The state to checkpoint."""
        return asdict(self)


def noise_scale(noise: Noise) -> float:
    """``variance / signal``: the batch whose noise is as large as its gradient [examples].

    Infinite if the estimated signal is not positive.

    Source:
        McCandlish et al. 2018, equation 2.9 (B_simple).
    """
    if noise.signal <= 0:
        return math.inf
    return max(0.0, noise.variance) / noise.signal


#: What `describe_noise` gives: columns of the curves, of which the first is the oldest.
NOISE_COLUMNS = (
    "noise_scale",
    "gradient_signal",
    "gradient_variance",
    "gradient_cosine",
    "gradient_diversity",
    "norm_test",
)


def describe_noise(noise: Noise, *, span: int, batch: int) -> dict[str, float]:
    """The columns that follow from the noise of a batch's parts, by their names.

    With ``n = batch / span`` parts, ``q = signal + variance / span`` is the mean square of the
    parts' gradients, and ``s = signal + variance / batch`` the square of their mean::

        gradient_cosine    = signal / q        mean over the pairs of parts
        gradient_diversity = q / (n s)         1 / n if all parts agree, 1 if they are orthogonal
        norm_test          = variance / (batch s)

    Args:
        noise: the average over steps.
        span: examples of a part [examples].
        batch: examples per optimizer step [examples].

    Source:
        Yin et al. 2018, arXiv:1706.05699, definition 2 (diversity, here of parts); Byrd et al. 2012
        (norm test: the variance of a batch's gradient over its square).
    """
    mean_square = noise.signal + noise.variance / span
    square_of_mean = noise.signal + noise.variance / batch
    return {
        "noise_scale": noise_scale(noise),
        "gradient_signal": noise.signal,
        "gradient_variance": noise.variance,
        "gradient_cosine": _ratio(noise.signal, mean_square),
        "gradient_diversity": _ratio(mean_square * span, batch * square_of_mean),
        "norm_test": _ratio(noise.variance, batch * square_of_mean),
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def gain(noise: Noise, *, base_batch: float, global_batch: float) -> float:
    """How many steps of the base batch a step is worth, from 1 to ``global_batch / base_batch``.

    ``(variance / base_batch + signal) / (variance / global_batch + signal)``

    Args:
        noise: the average over steps.
        base_batch: the reference batch [examples].
        global_batch: examples per optimizer step [examples].

    Source:
        Johnson et al. 2020, arXiv:2007.05105, equation 4, with ``sigma**2 = variance / base_batch``
        and ``mu**2 = signal`` (formula as in fairscale's optim/adascale.py).
    """
    signal, variance = max(0.0, noise.signal), max(0.0, noise.variance)
    if variance == 0:
        return 1.0
    return (variance / base_batch + signal) / (variance / global_batch + signal)


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
