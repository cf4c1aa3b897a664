"""Prints the expected losses of gradient_delay.md: the noisy quadratic with delays, exactly.

Each weight is the first of a vector of its last values, ``x <- M x + noise``, whose second moments
are followed step by step. The noise of the first steps is independent here; with a single number as
the delay, a run applies its first gradient several times.
"""

import numpy as np

from lightning_modules.models.noisy_quadratic import curvatures_and_noise

EXAMPLES = 65_536
RATES = 2.0 ** np.arange(-9, 1.51, 0.25)
DELAYS = {"none": [0], "1": [1], "3": [3], "7": [7], "0,1": [0, 1], "0,1,2,3": [0, 1, 2, 3]}
DELAYS["0,...,7"] = list(range(8))


def expected_loss(batch: int, rate: float, delays: list[int]) -> float:
    """The expected loss at the end; infinite if it diverges."""
    curvatures, noise = curvatures_and_noise(64, decay=1, noise_scale=1024)
    size = max(delays) + 1
    step = np.zeros((64, size, size))
    step[:, 0, 0] = 1
    for delay in delays:
        step[:, 0, delay] -= rate * curvatures / len(delays)
    step[:, range(1, size), range(size - 1)] = 1
    moments = np.ones((64, size, size))
    for _ in range(EXAMPLES // batch):
        moments = step @ moments @ step.transpose(0, 2, 1)
        moments[:, 0, 0] += rate**2 * noise / batch
        if moments[:, 0, 0].max() > 1e12:
            return np.inf
    return float(curvatures @ moments[:, 0, 0]) / 2


if __name__ == "__main__":
    for name, delays in DELAYS.items():
        for batch in 2 ** np.arange(7, 14):
            losses = [expected_loss(int(batch), rate, delays) for rate in RATES]
            product = batch * (1 + np.mean(delays))
            best = RATES[int(np.argmin(losses))]
            print(f"{name:8} {batch:6} {product:8.0f} {min(losses):.3f} at {best:.3g}")  # noqa: T201
