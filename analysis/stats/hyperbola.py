"""Examples to a target against the batch as a hyperbola, by maximum likelihood."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import root_scalar

from analysis.stats.replicates import LEVEL, ROUNDING, Array

BEYOND = 1e4  # how far beyond the batches the ratio is looked for [factor]


@dataclass(frozen=True, slots=True)
class Times:
    """Examples to the target, as multiples of their batch's mean."""

    batches: Array
    scale: Array  # mean of the batch [examples]
    taken: Array  # [multiples]
    is_ended: NDArray[np.bool_]  # the run ended then without reaching it

    @classmethod
    def of_rows(cls, rows: pd.DataFrame) -> "Times":
        """From `global_batch`, `examples`, `is_ended`."""
        scale = rows.groupby("global_batch")["examples"].transform("mean").to_numpy(float)
        batches, examples = (rows[c].to_numpy(float) for c in ("global_batch", "examples"))
        return cls(batches, scale, examples / scale, rows["is_ended"].to_numpy(bool))

    def profile(self, ratio: Array) -> tuple[Array, Array]:
        """The largest log likelihood of each ratio, and the fewest examples there.

        ``E = E_min (1 + batch / ratio) + noise`` with noise in proportion to the batch's mean;
        E_min and the noise by EM.
        """
        x = (1 + self.batches / ratio[:, None]) / self.scale
        mean, more = self.taken, np.zeros_like(x)
        found = fewest = np.full(len(ratio), -np.inf)
        for _ in range(300):
            last, fewest = found, (mean * x).sum(1) / (x * x).sum(1)
            fitted = fewest[:, None] * x
            spread = np.sqrt(((mean - fitted) ** 2 + more).mean(1, keepdims=True)).clip(ROUNDING)
            off = (self.taken - fitted) / spread
            beyond = stats.norm.logsf(off)
            known = -np.log(spread) - off**2 / 2
            found = np.where(self.is_ended, beyond, known).sum(1)
            if np.abs(found - last).max() < 1e-9:
                break
            hazard = np.exp(stats.norm.logpdf(off) - beyond)
            mean = np.where(self.is_ended, fitted + spread * hazard, self.taken)
            more = np.where(self.is_ended, spread**2 * (1 - hazard * (hazard - off)), 0.0)
        return found, fewest

    def ratio(self) -> tuple[float, float, float, float]:
        """E_min / S_min, the ends of its interval (infinite if there is none), and E_min.

        Twice the log likelihood may fall by ``n log(1 + t**2 / (n - 2))``, which for times that are
        all known is Student's interval of a regression with two coefficients; by more where the
        batches that decide scatter more than others do (White 1980, Econometrica 48, 817-838).
        """
        least, most = self.batches.min() / BEYOND, self.batches.max() * BEYOND
        grid = np.geomspace(least, most, 161)
        for _ in range(5):
            best = int(self.profile(grid)[0].argmax())
            grid = np.geomspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 41)
        found, fewest = self.profile(grid)
        best = int(found.argmax())
        count = int((~self.is_ended).sum())
        free = max(count - 2, 1)
        fall = count / 2 * np.log1p(stats.t.ppf(0.5 + LEVEL / 2, free) ** 2 / free)
        fall *= self._unequal(float(fewest[best]), float(grid[best]))

        def above(log_ratio: float) -> float:
            return float(self.profile(np.exp([log_ratio]))[0][0] - found[best] + fall)

        def end(limit: float, unbounded: float) -> float:
            if not above(np.log(limit)) < 0 < above(np.log(grid[best])):
                return unbounded
            bracket = sorted([np.log(limit), np.log(grid[best])])
            return float(np.exp(root_scalar(above, bracket=bracket, xtol=1e-6).root))

        return float(grid[best]), end(least, -np.inf), end(most, np.inf), float(fewest[best])

    def _unequal(self, fewest: float, ratio: float) -> float:
        """How much larger the variance of log ratio is than with equal noise, at least 1."""
        law = np.stack([np.ones_like(self.batches), self.batches], axis=1)[~self.is_ended]
        x = law / self.scale[~self.is_ended, None]
        solved = np.linalg.pinv(x)
        gradient = solved[0] - solved[1] * ratio  # times `fewest`, which cancels
        rest = (self.taken[~self.is_ended] - fewest * x @ [1, 1 / ratio]) ** 2
        equal = (gradient**2).sum() * rest.sum()
        return max(1.0, len(rest) * float((gradient**2 * rest).sum() / equal)) if equal else 1.0
