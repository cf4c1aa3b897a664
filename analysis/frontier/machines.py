"""The machines that are compared: nodes and links as presets describe them, speed of a device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from sweeper import CONFIG_FOLDER
from sweeper.planning.exchange import Places
from sweeper.spec.hardware import Hardware
from sweeper.spec.sentences import read_model
from sweeper.spec.values import Count, Price, Settings


class _Preset(Settings, extra="ignore"):
    devices: Count
    hardware: Hardware
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where runs are imagined to run."""

    name: str  # of its preset
    per_node: int  # devices of a node
    hardware: Hardware  # its links
    price: float | None = None  # of a device-hour; None if not known

    def places(self, ranks: int) -> Places:
        """Ranks on as many devices of each node as possible, equally many on all nodes."""
        return Places(ranks, max(n for n in range(1, self.per_node + 1) if ranks % n == 0))


def read_cluster(name: str | None, folders: Sequence[Path] = ()) -> Cluster:
    """A preset of a folder of configs, or of ours.

    ValueError for a name without a preset, or a preset without its hardware.
    """
    presets = find_presets(folders)
    if name is None or name not in presets:
        msg = (
            "--cluster must name the machines to compare batches on, one of "
            f"{', '.join(sorted(presets))}; got {f'--cluster {name}' if name else 'none'}. "
            "Describe your own in DIR/cluster/NAME.yaml, as docs/frontier.md says, and give "
            "--config-dir DIR."
        )
        raise ValueError(msg)
    path = presets[name]
    try:
        given: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        msg = f"{path} must be YAML; {error}."
        raise ValueError(msg) from error
    try:
        preset = read_model(_Preset, given if isinstance(given, dict) else {})
    except ValueError as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error
    return Cluster(name, preset.devices, preset.hardware, preset.price)


def find_presets(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """The files that describe clusters by name, in folders of configs and in ours."""
    places = [folder / "cluster" for folder in (CONFIG_FOLDER, *reversed(folders))]
    return {path.stem: path for place in places for path in sorted(place.glob("*.yaml"))}


#: Key in place of a micro-batch, for a speed that does not depend on it.
_ANY = 0


@dataclass(frozen=True, slots=True)
class MachineSpeeds:
    """Seconds of a micro-batch on a device, forward and backward."""

    #: by micro-batch; under the key 0, of an example at any micro-batch [seconds].
    times: Mapping[int, float]
    source: str  # where the times come from, in words

    @property
    def smallest(self) -> int:
        """The smallest micro-batch whose time is known."""
        return max(1, min(self.times))

    def largest_fit(self, examples: int) -> int | None:
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

    def __str__(self) -> str:
        if _ANY in self.times:
            return f"{1 / self.times[_ANY]:,.0f} examples/s ({self.source})"
        sizes = sorted(self.times)
        listed = ", ".join(f"{m / self.times[m]:,.0f} at micro-batch {m}" for m in sizes)
        return f"examples/s {listed} ({self.source})"


def parse_speeds(text: str) -> MachineSpeeds:
    """From `367`, or from `16:290,128:367`: examples per second, at micro-batches.

    ValueError for anything else.
    """
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        if not all(0 < value < math.inf for pair in pairs for value in pair):
            raise ValueError(text)
        if len(pairs) == 1 and len(pairs[0]) == 1:
            times = {_ANY: 1 / pairs[0][0]}
        else:
            times = {int(size): int(size) / rate for size, rate in pairs}
    except (ValueError, ZeroDivisionError) as error:
        msg = (
            "--examples-per-s must be a speed, or speeds of a device by micro-batch such as "
            f"16:290,128:367; got --examples-per-s {text}."
        )
        raise ValueError(msg) from error
    return MachineSpeeds(times, "given")


def measured_speeds(runs: pd.DataFrame) -> tuple[MachineSpeeds | None, float]:
    """Medians over runs that finished in one attempt, on the fewest ranks.

    Returns:
        The speeds, None without such runs; and the time between epochs (evaluations, checkpoints)
        as a fraction of the training time.
    """
    is_whole = (runs["outcome"] == "finished") & (runs["attempt"] == 1) & (runs["train_s"] > 0)
    whole = runs[is_whole]
    if whole.empty:
        return None, 0.0
    between_s = whole["wall_s"] - whole["train_s"] - whole["start_s"].fillna(0.0)
    share = max(0.0, float((between_s / whole["train_s"]).median()))
    kind = whole["device_kind"].value_counts().index[0]
    whole = whole[whole["device_kind"] == kind]
    fewest = int(whole["world_size"].min())
    whole = whole[whole["world_size"] == fewest]
    micro_s = whole["train_s"] / whole["steps"] / whole["accumulation_steps"]
    medians = micro_s.groupby(whole["micro_batch"].astype("int64")).median()
    exchange = f", on {fewest} ranks with their exchange" if fewest > 1 else ""
    times = {int(str(size)): float(s) for size, s in medians.items()}
    return MachineSpeeds(times, f"measured on {kind}{exchange}"), share
