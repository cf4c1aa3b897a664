"""What is known of the memory that runs take, stored in the results folder.

    results/memory/<key>/about.json         what the key stands for, for people
    results/memory/<key>/trace.json         the memory by class, as predicted by a trace
    results/memory/<key>/<micro>-took.json  the peak of a run with this micro-batch
    results/memory/<key>/<micro>-over.json  that a run ran out of memory with it; takes precedence

Files are published by rename, so that concurrent sweeps lose nothing. A file that cannot be read
counts as missing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from sweeper.spec.batch import usable_micro_batches
from sweeper.spec.config import RunConfig
from sweeper.spec.identity import targets
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import CPU, DEVICE, Device, MemoryTrace, cost_settings
from sweeper.spec.run_spec import RunSpec, with_micro_batch
from sweeper.spec.sentences import several
from sweeper.spec.spans import takes_micro_batches_whole
from sweeper.store.attempt import Attempt
from sweeper.store.publish import publish_json, read_mapping, skip_if_forbidden
from sweeper.store.user_code import code_hash, user_code

#: Fraction of a limit that a prediction may reach: equal runs were seen to differ (docs/batch.md).
_PART_OF_LIMIT = 0.95
#: Left free in a run's share of a GPU, for CUDA's and NCCL's own memory and for fragmentation.
_GPU_RESERVE_GIB = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is known about a run's memory before it starts."""

    spec: RunSpec  # the run with its micro-batch and, if known, its predicted memory
    source: str  # of the micro-batch: given, limit, predicted or to be traced
    classes: Mapping[str, float] = field(default_factory=dict[str, float])  # predicted [GiB]
    fails: int | None = None  # the smallest micro-batch that needs too much; None: none is known
    refusal: str = ""  # why the run cannot be executed; empty if it can


@dataclass(frozen=True, slots=True, kw_only=True)
class KindMemory:
    """What is stored of the memory of a kind of run."""

    about: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what its memory depends on
    trace: MemoryTrace | None = None  # of a few steps; None if there was none
    #: measured peaks by micro-batch [GiB].
    peaks_gib: Mapping[int, float] = field(default_factory=dict[int, float])
    over: frozenset[int] = frozenset()  # micro-batches with which a run ran out of memory

    @classmethod
    def read(cls, folder: Path) -> "KindMemory":
        """Read the folder of a kind of run."""
        about, trace = read_mapping(folder / "about.json"), None
        with suppress(OSError, ValueError):
            trace = MemoryTrace.model_validate_json((folder / "trace.json").read_bytes())
        peaks_gib, over = dict[int, float](), set[int]()
        for path in folder.glob("*-*.json"):
            content, (micro_batch, _, word) = read_mapping(path), path.stem.partition("-")
            peak_gib = content.get("peak_gib")
            if not micro_batch.isdecimal():
                continue
            if word == "took" and isinstance(peak_gib, float | int):
                peaks_gib[int(micro_batch)] = peak_gib
            elif word == "over" and content:
                over.add(int(micro_batch))
        return cls(about=about, trace=trace, peaks_gib=peaks_gib, over=frozenset(over))

    def classes(self, micro_batch: int) -> dict[str, float]:
        """The predicted memory of each class [GiB]; empty if it is not known.

        Measured peaks correct `DEVICE`: by the median of measured minus predicted memory.
        """
        if self.trace is None:
            return {}
        device: Any = self.about.get("device")
        on_gpu = isinstance(device, Mapping) and device.get("kind") != CPU.kind
        if classes := self.trace.classes_at(micro_batch, on_gpu=on_gpu):
            errors_gib = [
                peak_gib - sum(self.trace.classes_at(measured, on_gpu=on_gpu).values())
                for measured, peak_gib in self.peaks_gib.items()
            ]
            classes[DEVICE] = max(0.0, classes[DEVICE] + median(errors_gib or [0.0]))
        return classes

    def exceeds(self, micro_batch: int, allowed_gib: float) -> bool:
        """Whether a micro-batch is known, or otherwise predicted, to need more than is allowed."""
        if any(failed <= micro_batch for failed in self.over):
            return True
        if micro_batch in self.peaks_gib:
            return self.peaks_gib[micro_batch] > allowed_gib
        return sum(self.classes(micro_batch).values()) > allowed_gib * _PART_OF_LIMIT


class MemoryCache:
    """What a results folder has on the memory of runs on a kind of device."""

    def __init__(self, results: Path, device: Device) -> None:
        self._folder, self._device = results / "memory", device
        self._versions = {name: version(name) for name in ("torch", "pytorch-lightning")}
        self._code_hashes: dict[tuple[str, ...], str | None] = {}

    def fits(self, specs: Iterable[RunSpec]) -> dict[str, Fit]:
        """What is known of each run, by run id."""
        read_kind = cache(KindMemory.read)  # files stay for this call
        return {s.run_id: self._fit(s, read_kind(self._folder / self.key(s))) for s in specs}

    def fit(self, spec: RunSpec) -> Fit:
        """What is known of a run: its micro-batch, and its predicted memory."""
        return self.fits([spec])[spec.run_id]

    def is_traced(self, spec: RunSpec) -> bool:
        """Whether the memory of this kind of run was traced."""
        return KindMemory.read(self._folder / self.key(spec)).trace is not None

    def allowed_gib(self, spec: RunSpec) -> float | None:
        """Memory that limits a run's micro-batch; None if nothing does, or it is not free [GiB]."""
        config, device = spec.config, self._device_for(spec.config)
        if takes_micro_batches_whole(config):
            return None
        limits = [] if config.memory_limit_gib is None else [config.memory_limit_gib]
        if device.memory_gib is not None:
            limits.append(max(0.0, device.memory_gib / device.runs - _GPU_RESERVE_GIB))
        return min(limits, default=None)

    def key(self, spec: RunSpec) -> str:
        """Hash of everything that the memory of a micro-batch depends on."""
        text = json.dumps(self._describe_kind(spec), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def record_trace(self, spec: RunSpec, trace: MemoryTrace) -> None:
        """Store the memory trace of this kind of run."""
        self._publish(spec, "trace.json", trace.model_dump())

    def record_end(self, attempt: Attempt, outcome: Outcome) -> None:
        """Store what a run took or that it was too much, so that no other run repeats it."""
        peak_gib = attempt.record().get("peak_memory_gib")
        if outcome == Outcome.OUT_OF_MEMORY:
            self.record_run(attempt.spec, None)
        elif outcome == Outcome.FINISHED and peak_gib:
            self.record_run(attempt.spec, peak_gib)

    def record_run(self, spec: RunSpec, peak_gib: float | None) -> None:
        """Store the peak memory of a run; None if it ran out of memory [GiB]."""
        name, content = "over", {"run_id": spec.run_id}
        if peak_gib is not None:
            name, content = "took", {"peak_gib": peak_gib, **content}
        self._publish(spec, f"{spec.split.micro_batch}-{name}.json", content)

    def _fit(self, spec: RunSpec, kind: KindMemory) -> Fit:
        """What is known of a run; a chosen micro-batch is the largest below those that fail."""
        is_auto, usable, fails = spec.config.micro_batch == "auto", list[int](), None
        source = "limit" if is_auto else "given"
        if is_auto and (allowed_gib := self.allowed_gib(spec)) is not None:
            if kind.trace is None or kind.trace.classes:
                source = "predicted" if kind.trace else "to be traced"
            limit = spec.config.micro_batch_limit
            usable = usable_micro_batches(spec.divided, limit=limit, bn_span=spec.bn_span)
            fails = min((size for size in usable if kind.exceeds(size, allowed_gib)), default=None)
            fitting = [size for size in usable if fails is None or size < fails]
            micro_batch = max(fitting, default=usable[0])
            if micro_batch != spec.split.micro_batch:
                spec = with_micro_batch(spec, micro_batch)
        if classes := kind.classes(spec.split.micro_batch):
            spec = spec.with_facts(predicted_memory_gib=sum(classes.values()))
        refusal = self._refusal(spec, classes) if fails in usable[:1] else ""
        return Fit(spec=spec, source=source, classes=classes, fails=fails, refusal=refusal)

    def _device_for(self, config: RunConfig) -> Device:
        """The device that a run trains on; of a GPU that is not on this machine, only that much."""
        if config.accelerator == "cpu":
            return CPU
        is_elsewhere = config.accelerator == "gpu" and self._device == CPU
        return Device(kind="gpu") if is_elsewhere else self._device

    def _describe_kind(self, spec: RunSpec) -> dict[str, Any]:
        resolved, device = spec.config.resolved, self._device_for(spec.config)
        if (names := tuple(targets(resolved))) not in self._code_hashes:
            self._code_hashes[names] = code_hash(user_code(names))
        code = self._code_hashes[names]
        part = {**cost_settings(resolved), "device": asdict(device), "versions": self._versions}
        return {**part, "code": code} if code else part

    @skip_if_forbidden()
    def _publish(self, spec: RunSpec, name: str, content: Mapping[str, Any]) -> None:
        folder = self._folder / self.key(spec)
        folder.mkdir(parents=True, exist_ok=True)
        publish_json(folder / "about.json", self._describe_kind(spec))
        publish_json(folder / name, content)

    def _refusal(self, spec: RunSpec, classes: Mapping[str, float]) -> str:
        config, device = spec.config, self._device_for(spec.config)
        limit, memory = config.memory_limit_gib, list[str]()
        if limit is not None:
            memory.append(f"memory_limit_gib={limit:g}")
        if device.is_gpu:
            size = f" ({device.memory_gib:.3g} GiB)" if device.memory_gib else ""
            shared = f", shared by {device.runs} runs" if device.runs > 1 else ""
            memory.append(f"the memory of {device.kind}{size}{shared}")
        predicted = f"is predicted to need {sum(classes.values()):.3g} GiB"
        return (
            f"the smallest micro-batch must fit in {' and '.join(memory)}; got micro_batch="
            f"{spec.split.micro_batch}, the smallest that can make up batch={config.batch} on "
            f"{several(spec.split.world_size, 'rank')} with bn_span={spec.bn_span}, and it "
            f"{predicted if classes else 'needs more'}. Provide more memory, or choose a smaller "
            "model or a smaller bn_span, which changes the experiment. The measurements are in "
            f"{self._folder / self.key(spec)}."
        )
