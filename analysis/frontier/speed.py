"""How long a device takes for a micro-batch: measured in runs, or given."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

#: What is read of the runs table.
COLUMNS = (
    "outcome", "attempt", "device_kind", "world_size", "micro_batch", "accumulation_steps", "steps",
    "train_s", "wall_s", "start_s", "num_parameters", "num_train_examples", "precision",
)  # fmt: skip


#: Key in place of a micro-batch, for a speed that does not depend on it.
_ANY = 0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of a micro-batch on one device, forward and backward.

    Attributes:
        times: by micro-batch; under the key 0, of one example at any micro-batch [seconds].
        source: where the times come from, in words.
    """

    times: Mapping[int, float]
    source: str

    @property
    def smallest(self) -> int:
        """The smallest micro-batch whose time is known."""
        return max(1, min(self.times))

    def fit(self, examples: int) -> int | None:
        """The largest micro-batch of known time that divides a rank's examples of a step."""
        if _ANY in self.times:
            return examples
        most = min(examples, max(self.times))
        small = range(1, math.isqrt(examples) + 1)
        divisors = {d for i in small if examples % i == 0 for d in (i, examples // i)}
        return max((d for d in divisors if self.smallest <= d <= most), default=None)

    def micro_s(self, micro_batch: int) -> float:
        """Time of a micro-batch, interpolated between those that are known [seconds]."""
        if _ANY in self.times:
            return self.times[_ANY] * micro_batch
        sizes = sorted(self.times)
        return float(np.interp(micro_batch, sizes, [self.times[size] for size in sizes]))

    @property
    def in_words(self) -> str:
        """The speeds with their source."""
        if _ANY in self.times:
            return f"{1 / self.times[_ANY]:,.0f} examples/s ({self.source})"
        each = ", ".join(
            f"{size / self.times[size]:,.0f} at micro-batch {size}" for size in sorted(self.times)
        )
        return f"examples/s {each} ({self.source})"


def given_speeds(text: str) -> Speeds:
    """From `367`, or from `16:290,128:367`: examples per second, at micro-batches.

    Raises:
        ValueError: for anything else.
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        if len(pairs) == 1 and len(pairs[0]) == 1:
            times: dict[int, float] = {_ANY: 1 / _positive(pairs[0][0])}
        else:
            times = {(size := int(_positive(m))): size / _positive(r) for m, r in pairs}
    except (ValueError, ZeroDivisionError) as error:
        msg = (
            "--examples-per-s must be a speed, or speeds of one device by micro-batch such as "
            f"16:290,128:367; got --examples-per-s {text}."
        )
        raise ValueError(msg) from error
    return Speeds(times, "given")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def measured_speeds(runs: pd.DataFrame) -> Speeds | None:
    """Speeds from runs that finished in one attempt, on the fewest ranks; None without any."""
    seen = _in_one_attempt(runs)
    if seen.empty:
        return None
    kind = seen["device_kind"].value_counts().index[0]
    seen = seen[seen["device_kind"] == kind]
    fewest = int(seen["world_size"].min())
    seen = seen[seen["world_size"] == fewest]
    micro_s = seen["train_s"] / seen["steps"] / seen["accumulation_steps"]
    medians = micro_s.groupby(seen["micro_batch"].astype("int64")).median()
    source = f"measured on {kind}"
    if fewest > 1:
        source += f", on {fewest} ranks with their exchange"
    return Speeds({int(str(size)): float(s) for size, s in medians.items()}, source)


def evaluation_share(runs: pd.DataFrame) -> float:
    """Time between epochs (evaluations, checkpoints), as a fraction of the training time.

    The median over runs that finished in one attempt; 0 without any.
    """
    seen = _in_one_attempt(runs)
    between = seen["wall_s"] - seen["train_s"] - seen["start_s"].fillna(0.0)
    return 0.0 if seen.empty else max(0.0, float((between / seen["train_s"]).median()))


def _in_one_attempt(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[(runs["outcome"] == "finished") & (runs["attempt"] == 1) & (runs["train_s"] > 0)]
