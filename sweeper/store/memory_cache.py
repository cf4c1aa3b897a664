"""What is known of the memory that runs take, stored in the results folder.

    results/memory/<key>/about.json         what the key stands for, for people
    results/memory/<key>/trace.json         the memory by class, as predicted by a trace
    results/memory/<key>/<micro>-took.json  the peak of a run with this micro-batch
    results/memory/<key>/<micro>-over.json  that a run exceeded its memory; takes precedence

Files are published by rename, so that concurrent sweeps lose nothing. A file that cannot be read
counts as missing.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from sweeper.spec.batch import usable_micro_batches
from sweeper.spec.config import RunConfig
from sweeper.spec.identity import targets
from sweeper.spec.method_checks import takes_micro_batches_whole
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import CPU, DEVICE, Device, MemoryTrace, memory_part, total_gib
from sweeper.spec.run_spec import RunSpec, with_micro_batch
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt
from sweeper.store.own_code import code_hash, own_code
from sweeper.store.publish import publish_json, publish_text, read_mapping, skip_if_forbidden

#: Fraction of a limit that a prediction may reach: equal runs were seen to differ (docs/batch.md).
_PART_OF_LIMIT = 0.95
#: Left free in a run's share of a GPU, for CUDA's and NCCL's own memory and for fragmentation.
_GPU_RESERVE_GIB = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is known about a run's memory before it starts.

    `spec` is the run with its micro-batch and, if known, its predicted memory, which `classes`
    has by class [GiB]. `source` says where the micro-batch comes from: given, limit, predicted or
    to be traced; `fails` is the smallest micro-batch that needs too much memory, None if none is
    known; `refusal` says why the run cannot be executed, empty if it can.
    """

    spec: RunSpec
    source: str
    classes: Mapping[str, float] = field(default_factory=dict[str, float])
    fails: int | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindMemory:
    """What is stored of the memory of a kind of run.

    Attributes:
        trace: of a few steps; None if there was none.
        took: measured peaks by micro-batch [GiB].
        over: by micro-batch, the limit that a run exceeded; None for that of its device [GiB].
        run_ids: the runs whose peak is stored.
        on_gpu: whether it trains on a GPU.
    """

    trace: MemoryTrace | None
    took: Mapping[int, float]
    over: Mapping[int, float | None]
    run_ids: frozenset[str]
    on_gpu: bool

    @classmethod
    def read(cls, folder: Path, *, on_gpu: bool) -> "KindMemory":
        """Read the folder of a kind of run; files that are damaged count as missing."""
        values: dict[str, dict[int, Any]] = {"took": {}, "over": {}}
        run_ids: set[str] = set()
        for word, key in (("took", "peak_gib"), ("over", "limit_gib")):
            for path in folder.glob(f"*-{word}.json"):
                content, micro_batch = read_mapping(path), path.stem.partition("-")[0]
                value = content.get(key, "")
                is_value = isinstance(value, float | int) or (word, value) == ("over", None)
                if micro_batch.isdecimal() and is_value:
                    values[word][int(micro_batch)] = value
                    run_ids |= {str(content.get("run_id"))} if word == "took" else set()
        return cls(trace=_read_trace(folder), run_ids=frozenset(run_ids), on_gpu=on_gpu, **values)

    def classes(self, micro_batch: int) -> dict[str, float]:
        """The predicted memory of each class [GiB]; empty if it is not known.

        What runs took corrects `DEVICE`: by the median of measured minus predicted peaks.
        """
        if self.trace is None or (classes := self.trace.classes_at(micro_batch)) is None:
            return {}
        other_gib = 0.0 if self.on_gpu else self.trace.other_gib(micro_batch)
        errors_gib = [
            peak_gib
            - total_gib(self.trace.classes_at(measured) or {})
            - (0.0 if self.on_gpu else self.trace.other_gib(measured))
            for measured, peak_gib in self.took.items()
        ]
        return {**classes, DEVICE: max(0.0, other_gib + (median(errors_gib or [0.0])))}

    def fails(self, micro_batch: int, allowed_gib: float) -> bool:
        """Whether a micro-batch is known, or otherwise predicted, to need more than is allowed."""
        for failed, limit_gib in self.over.items():
            if failed <= micro_batch and (limit_gib is None or allowed_gib <= limit_gib):
                return True
        if micro_batch in self.took:
            return self.took[micro_batch] > allowed_gib
        return total_gib(self.classes(micro_batch)) > allowed_gib * _PART_OF_LIMIT


def traced_kinds(results: Path) -> Iterator[KindMemory]:
    """The kinds of run whose memory was traced, with the runs of each that were trained."""
    for path in sorted((results / "memory").glob("*/about.json")):
        device = read_mapping(path).get("device")
        if isinstance(device, Mapping):
            kind = KindMemory.read(path.parent, on_gpu=device.get("kind") != CPU.kind)
            if kind.trace is not None and kind.trace.classes:
                yield kind


class MemoryCache:
    """What a results folder has on the memory of runs on a kind of device."""

    def __init__(self, results: Path, device: Device) -> None:
        self._folder, self._device = results / "memory", device
        self._versions = {name: version(name) for name in ("torch", "pytorch-lightning")}
        self._hash_code = cache(_hash_code)

    def fits(self, specs: Iterable[RunSpec]) -> dict[str, Fit]:
        """What is known of each run, by run id."""
        has_files = self._folder.is_dir()
        read_kind = cache(KindMemory.read)  # files stay for this call
        found: dict[str, Fit] = {}
        for spec in specs:
            kind = None
            if has_files:
                folder = self._folder / self.key(spec)
                kind = read_kind(folder, on_gpu=self._is_on_gpu(spec.config))
            found[spec.run_id] = self._fit(spec, kind)
        return found

    def fit(self, spec: RunSpec) -> Fit:
        """What is known of a run: its micro-batch, and its predicted memory."""
        return self.fits([spec])[spec.run_id]

    def distinct_kinds(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """A run of each kind."""
        return list({self.key(spec): spec for spec in specs}.values())

    def is_traced(self, spec: RunSpec) -> bool:
        """Whether the memory of this kind of run was traced."""
        return _read_trace(self._folder / self.key(spec)) is not None

    def is_chosen(self, spec: RunSpec) -> bool:
        """Whether the micro-batch is chosen automatically and must fit into a known memory."""
        return spec.config.micro_batch == "auto" and self.allowed_gib(spec) is not None

    def allowed_gib(self, spec: RunSpec) -> float | None:
        """Memory that limits a run's micro-batch; None if nothing does, or it is not free [GiB]."""
        config, device = spec.config, self._device_for(spec.config)
        if takes_micro_batches_whole(config):
            return None
        limits = [] if config.memory_limit_gib is None else [config.memory_limit_gib]
        if self._is_on_gpu(config) and device.memory_gib is not None:
            limits.append(max(0.0, device.memory_gib / device.runs - _GPU_RESERVE_GIB))
        return min(limits, default=None)

    def key(self, spec: RunSpec) -> str:
        """Hash of everything that the memory of a micro-batch depends on."""
        text = json.dumps(self._describe_kind(spec), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def record_trace(self, spec: RunSpec, trace: MemoryTrace) -> None:
        """Store the memory trace of this kind of run."""
        self._publish(spec, "trace.json", trace.model_dump_json())

    def learn(self, attempt: Attempt, outcome: Outcome) -> None:
        """Store what a run took and whether that was too much, so that no other run repeats it."""
        spec = attempt.spec
        limit, peak = spec.config.memory_limit_gib, attempt.record().get("peak_memory_gib")
        if outcome == Outcome.OUT_OF_MEMORY:
            self.record_over(spec, limit_gib=None, why="a run ran out of memory")
        elif outcome == Outcome.FINISHED and peak:
            self.record_took(spec, peak)
            if limit is not None and peak > limit:
                self.record_over(spec, limit_gib=limit, why=f"a run took {peak:.3f} GiB")

    def record_took(self, spec: RunSpec, peak_gib: float) -> None:
        """Store the peak memory of a run [GiB]."""
        text = json.dumps({"peak_gib": peak_gib, "run_id": spec.run_id}, indent=1)
        self._publish(spec, f"{spec.split.micro_batch}-took.json", text)

    def record_over(self, spec: RunSpec, *, limit_gib: float | None, why: str) -> None:
        """Store that a run exceeded this limit, or with None, the memory of its device [GiB]."""
        content = {"limit_gib": limit_gib, "why": why, "run_id": spec.run_id}
        self._publish(spec, f"{spec.split.micro_batch}-over.json", json.dumps(content, indent=1))

    def describe(self, spec: RunSpec) -> str:
        """Text that describes the memory that a run must fit into."""
        limit = spec.config.memory_limit_gib
        stated = f"memory_limit_gib={limit:g}" if limit is not None else ""
        if not self._is_on_gpu(spec.config):
            return stated
        device = self._device_for(spec.config)
        size = f" ({device.memory_gib:.3g} GiB)" if device.memory_gib else ""
        shared = f", shared by {device.runs} runs" if device.runs > 1 else ""
        gpu = f"the memory of {device.kind}{size}{shared}"
        return f"{stated} and {gpu}" if stated else gpu

    def _fit(self, spec: RunSpec, kind: KindMemory | None) -> Fit:
        source = "limit" if spec.config.micro_batch == "auto" else "given"
        if not self.is_chosen(spec):
            return Fit(spec=spec, source=source) if kind is None else _predict(spec, kind, source)
        if kind is None:
            return Fit(spec=spec, source="to be traced")
        allowed_gib, limit = self.allowed_gib(spec) or 0.0, spec.config.micro_batch_limit
        usable = usable_micro_batches(spec.split.rank_batch, limit=limit, bn_span=spec.bn_span)
        fails = min((size for size in usable if kind.fails(size, allowed_gib)), default=None)
        chosen = max((size for size in usable if fails is None or size < fails), default=usable[0])
        if kind.trace is None:
            source = "to be traced"
        elif kind.trace.classes:
            source = "predicted"
        fit = _predict(with_micro_batch(spec, chosen), kind, source)
        refusal = self._refusal(fit) if fails == usable[0] else ""
        return replace(fit, fails=fails, refusal=refusal)

    def _device_for(self, config: RunConfig) -> Device:
        """The device that a run trains on; of a GPU that is not on this machine, only that much."""
        if config.accelerator == "cpu":
            return CPU
        is_elsewhere = config.accelerator == "gpu" and self._device == CPU
        return Device(kind="gpu") if is_elsewhere else self._device

    def _is_on_gpu(self, config: RunConfig) -> bool:
        return self._device_for(config).kind != CPU.kind

    def _describe_kind(self, spec: RunSpec) -> dict[str, Any]:
        part = memory_part(spec.config, self._device_for(spec.config))
        code = self._hash_code(tuple(targets(spec.config.resolved)))
        return {**part, "versions": self._versions, **({"code": code} if code else {})}

    @skip_if_forbidden()
    def _publish(self, spec: RunSpec, name: str, content: str) -> None:
        folder = self._folder / self.key(spec)
        folder.mkdir(parents=True, exist_ok=True)
        publish_json(folder / "about.json", self._describe_kind(spec))
        publish_text(folder / name, content)

    def _refusal(self, fit: Fit) -> str:
        spec, config = fit.spec, fit.spec.config
        needs = f"is predicted to need {total_gib(fit.classes):.3g} GiB" if fit.classes else ""
        return (
            f"the smallest micro-batch must fit in {self.describe(spec)}; got micro_batch="
            f"{spec.split.micro_batch}, the smallest that can make up batch={config.batch} on "
            f"{several(spec.split.world_size, 'rank')} with bn_span={spec.bn_span}, and it "
            f"{needs or 'needs more'}. Provide more memory, or choose a smaller model or a smaller "
            "bn_span, which changes the experiment. The measurements are in "
            f"{self._folder / self.key(spec)}."
        )


def _predict(spec: RunSpec, kind: KindMemory, source: str) -> Fit:
    """What is known of a run with its micro-batch; with the predicted memory."""
    if classes := kind.classes(spec.split.micro_batch):
        spec = spec.with_facts(predicted_memory_gib=total_gib(classes))
    return Fit(spec=spec, source=source, classes=classes)


def _hash_code(targets: tuple[str, ...]) -> str | None:
    return code_hash(own_code(targets))


def _read_trace(folder: Path) -> MemoryTrace | None:
    try:
        return MemoryTrace.model_validate_json((folder / "trace.json").read_bytes())
    except (OSError, ValueError):
        return None
