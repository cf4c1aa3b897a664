"""Results of memory probes, cached beside the runs.

    results/probes/<key>/about.json         what the key means, for people
    results/probes/<key>/<micro>-took.json  the memory that a micro-batch took
    results/probes/<key>/<micro>-over.json  one that took more than it might; takes precedence
    results/probes/<key>/probing/lease.json while a process is at it

One writer per file, published by rename: sweeps at once lose nothing. A file that cannot be read is
as good as none.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sweeper.spec.batch import usable_micro_batches
from sweeper.spec.config import RunConfig
from sweeper.spec.memory import CPU, Device, memory_part
from sweeper.spec.method_checks import gradient_span
from sweeper.spec.micro_batch_search import NOTHING_KNOWN, Bounds, largest_fitting, next_try
from sweeper.spec.run_spec import RunSpec, with_micro_batch
from sweeper.store.lease import lock, unlock
from sweeper.store.publish import publish_json

_KEY_LENGTH = 16
#: A probe may take this part of a stated limit: equal runs were seen to differ (docs/batch.md).
_PART_OF_LIMIT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is known about a run's micro-batch before it starts.

    `spec` is the run with its micro-batch, as planned while that is to be probed; `to_probe`
    the micro-batch to probe next, None if there is none; `refusal` why the run cannot be made,
    empty if it can; `source` given, limit, probed or to be probed.
    """

    spec: RunSpec
    to_probe: int | None = None
    refusal: str = ""
    source: str
    bounds: Bounds = NOTHING_KNOWN


class MemoryCache:
    """The findings of a results folder on one kind of device."""

    def __init__(self, results: Path, device: Device) -> None:
        self._folder, self._device = results / "probes", device

    def fit(self, spec: RunSpec) -> Fit:
        """The largest micro-batch that is known to fit, or what to probe to find it."""
        if not self.is_probed(spec):
            is_given = spec.config.micro_batch != "auto"
            return Fit(spec=spec, source="given" if is_given else "limit")
        bounds, limit = self.bounds(spec), spec.config.micro_batch_limit
        usable = usable_micro_batches(spec.split.rank_batch, limit=limit, bn_span=spec.bn_span)
        if (to_probe := next_try(usable, bounds)) is not None:
            return Fit(spec=spec, to_probe=to_probe, source="to be probed", bounds=bounds)
        largest = largest_fitting(usable, bounds)
        chosen = with_micro_batch(spec, largest or usable[0])
        refusal = "" if largest else self._refusal(chosen)
        return Fit(spec=chosen, refusal=refusal, source="probed", bounds=bounds)

    def is_probed(self, spec: RunSpec) -> bool:
        """Whether a run's micro-batch is ours to choose, and there is a memory it must fit into.

        Where BatchNorm or the method looks at each micro-batch, its size is part of what is
        trained: the memory of a machine must not choose it.
        """
        return spec.config.micro_batch == "auto" and self.has_limit(spec)

    def has_limit(self, spec: RunSpec) -> bool:
        """Whether there is a memory that a run's micro-batch, however chosen, must fit into."""
        config = spec.config
        is_free = config.bn_span != "micro" and gradient_span(config) is None
        return is_free and (self._on_gpu(config) or config.memory_limit_gib is not None)

    def share_of_gpu(self, spec: RunSpec) -> float | None:
        """The part of a GPU's memory that is a run's; None if it trains on a CPU."""
        return 1 / self._device.runs if self._on_gpu(spec.config) else None

    def key(self, spec: RunSpec) -> str:
        """Names everything that the memory of a micro-batch depends on."""
        text = json.dumps(self._about(spec), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]

    def bounds(self, spec: RunSpec) -> Bounds:
        """What the probes so far imply for a run."""
        fitting, failing = list[int](), list[int]()
        allowed = self.allowed_gib(spec)
        for path in (self._folder / self.key(spec)).glob("*-*.json"):
            micro_batch, _, word = path.stem.partition("-")
            fits = _fits(word, _read(path), allowed)
            if fits is not None and micro_batch.isdecimal():
                (fitting if fits else failing).append(int(micro_batch))
        return Bounds.of(fitting, failing)

    def allowed_gib(self, spec: RunSpec) -> float | None:
        """What a probe may use of a given limit; None if only the device limits it [GiB]."""
        limit = spec.config.memory_limit_gib
        return None if limit is None else limit * _PART_OF_LIMIT

    def record_fit(self, spec: RunSpec, micro_batch: int, *, peak_gib: float, **other: Any) -> None:
        """Remember what a micro-batch took: the most memory at once; `other` is for people."""
        content = {"peak_gib": peak_gib, "run_id": spec.run_id, **other}
        self._note(spec, f"{micro_batch}-took.json", content)

    def record_over(
        self, spec: RunSpec, micro_batch: int, *, limit_gib: float | None, **other: Any
    ) -> None:
        """Remember that a micro-batch took more than this, or if None all that the device has."""
        content = {"limit_gib": limit_gib, "run_id": spec.run_id, **other}
        self._note(spec, f"{micro_batch}-over.json", content)

    def claim(self, spec: RunSpec) -> bool:
        """Make this process the one that probes; False if another one is at it."""
        return lock(self.probe_folder(spec))

    def release(self, spec: RunSpec) -> None:
        """The probe is over."""
        unlock(self.probe_folder(spec))

    def probe_folder(self, spec: RunSpec) -> Path:
        """Where the probe may write; removed at the release."""
        return self._folder / self.key(spec) / "probing"

    def keep_log(self, spec: RunSpec) -> Path:
        """Keep the log of the probe beyond its release; where it is."""
        kept = self._folder / self.key(spec) / "log.txt"
        with contextlib.suppress(FileNotFoundError):
            (self.probe_folder(spec) / "log.txt").replace(kept)
        return kept

    def describe(self, spec: RunSpec) -> str:
        """Description of the memory that a run must fit in."""
        limit = spec.config.memory_limit_gib
        stated = f"memory_limit_gib={limit:g}" if limit is not None else ""
        if not self._on_gpu(spec.config):
            return stated
        size = f" ({self._device.memory_gib:.3g} GiB)" if self._device.memory_gib else ""
        shared = f", shared by {self._device.runs} runs" if self._device.runs > 1 else ""
        gpu = f"the memory of {self._device.kind}{size}{shared}"
        return f"{stated} and {gpu}" if stated else gpu

    def _on_gpu(self, config: RunConfig) -> bool:
        return self._device.kind != "cpu" and config.accelerator != "cpu"

    def _about(self, spec: RunSpec) -> dict[str, Any]:
        device = self._device if self._on_gpu(spec.config) else CPU
        return {**memory_part(spec.config, device), "versions": _versions()}

    def _note(self, spec: RunSpec, name: str, content: Mapping[str, Any]) -> None:
        folder = self._folder / self.key(spec)
        folder.mkdir(parents=True, exist_ok=True)
        publish_json(folder / "about.json", self._about(spec))
        publish_json(folder / name, content)

    def _refusal(self, spec: RunSpec) -> str:
        config, ranks = spec.config, spec.split.world_size
        return (
            f"the smallest micro-batch must fit in {self.describe(spec)}; got micro_batch="
            f"{spec.split.micro_batch}, the smallest that can make up batch={config.batch} on "
            f"{ranks} rank(s) with bn_span={spec.bn_span}, and it needs more. Provide more "
            "memory, or choose a smaller model or a smaller bn_span, which changes the "
            f"experiment. The measurements are in {self._folder / self.key(spec)}."
        )


def _read(path: Path) -> dict[str, Any]:
    """The contents of a file; empty if it was truncated or is not a mapping."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _fits(word: str, content: Mapping[str, Any], allowed_gib: float | None) -> bool | None:
    """Whether a finding fits into what is allowed; None if it does not say."""
    if word == "took" and isinstance(peak := content.get("peak_gib"), float):
        return allowed_gib is None or peak <= allowed_gib
    if word == "over" and "limit_gib" in content:
        limit = content["limit_gib"]
        return False if limit is None or allowed_gib is None or allowed_gib <= limit else None
    return None


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "pytorch-lightning")}
