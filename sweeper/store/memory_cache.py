"""What is known of the memory that runs take, stored in the results folder.

    results/memory/<key>/about.json         what the key stands for, for people
    results/memory/<key>/trace.json         the memory by class, as predicted by a trace
    results/memory/<key>/<micro>-took.json  the peak of a run with this micro-batch
    results/memory/<key>/<micro>-over.json  one that exceeded its memory; takes precedence

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
from sweeper.spec.groups import Groups
from sweeper.spec.identity import Kin
from sweeper.spec.memory import CPU, Device, memory_part, plain_part
from sweeper.spec.memory_classes import DEVICE, MemoryTrace, total_gib
from sweeper.spec.method_checks import takes_micro_batches_whole
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, with_micro_batch
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt
from sweeper.store.own_code import code_hash, own_code
from sweeper.store.publish import if_allowed, publish_json, publish_text, read_mapping

_KEY_LENGTH = 16
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
class _Known:
    """One kind of run: its trace, and by micro-batch its peaks and the limits that it exceeded."""

    trace: MemoryTrace | None
    took: Mapping[int, float]
    over: Mapping[int, float | None]

    def classes(self, micro_batch: int, *, on_gpu: bool) -> dict[str, float]:
        """The predicted memory of each class [GiB]; empty if it is not known."""
        if self.trace is None or (found := self.trace.at(micro_batch)) is None:
            return {}
        trace, on_cpu = self.trace, not on_gpu
        seen = [
            peak - total_gib(of) - on_cpu * trace.beside(taken)
            for taken, peak in self.took.items()
            if (of := trace.at(taken)) is not None
        ]
        beside = on_cpu * trace.beside(micro_batch) + (median(seen) if seen else 0.0)
        return {**found, DEVICE: max(0.0, beside)}

    def fails(self, micro_batch: int, allowed_gib: float, *, on_gpu: bool) -> bool:
        """Whether a micro-batch is known, or otherwise predicted, to need more than is allowed."""
        for failed, limit in self.over.items():
            if failed <= micro_batch and (limit is None or allowed_gib <= limit):
                return True
        if micro_batch in self.took:
            return self.took[micro_batch] > allowed_gib
        return total_gib(self.classes(micro_batch, on_gpu=on_gpu)) > allowed_gib * _PART_OF_LIMIT


@dataclass(frozen=True, slots=True)
class TracedKind:
    """A kind of run whose memory was traced.

    Attributes:
        run_ids: the runs whose measured memory is stored.
    """

    run_ids: frozenset[str]
    _known: _Known
    _on_gpu: bool

    def classes(self, micro_batch: int) -> dict[str, float]:
        """The predicted memory of each class [GiB]."""
        return self._known.classes(micro_batch, on_gpu=self._on_gpu)


def traced_kinds(results: Path) -> Iterator[TracedKind]:
    """The kinds of run whose memory was traced, with the runs of each that were trained."""
    for path in sorted((results / "memory").glob("*/about.json")):
        known, device = _known(path.parent), read_mapping(path).get("device")
        if isinstance(device, Mapping) and known.trace is not None and known.trace.classes:
            ids = {read_mapping(took).get("run_id") for took in path.parent.glob("*-took.json")}
            yield TracedKind(frozenset(map(str, ids)), known, device.get("kind") != CPU.kind)


class MemoryCache:
    """What a results folder has on the memory of runs on one kind of device."""

    def __init__(self, results: Path, device: Device) -> None:
        self._folder, self._device = results / "memory", device
        self._keys: dict[tuple[Groups, str, str | None], str] = {}

    def fits(self, specs: Iterable[RunSpec]) -> dict[str, Fit]:
        """What is known of each run, by run id."""
        known: dict[str, _Known] | None = {} if self._folder.is_dir() else None
        found: dict[str, Fit] = {}
        of_kin: dict[Kin, tuple[RunSpec, Fit]] = {}
        for spec in specs:
            if spec.kin not in of_kin:
                of_kin[spec.kin] = spec, self._fit(spec, known)
            first, fit = of_kin[spec.kin]
            its = spec if fit.spec is first else fit.spec.with_seed(spec.config.seed)
            found[spec.run_id] = replace(fit, spec=its)
        return found

    def fit(self, spec: RunSpec) -> Fit:
        """What is known of a run: its micro-batch, and its predicted memory."""
        return self.fits([spec])[spec.run_id]

    def is_traced(self, spec: RunSpec) -> bool:
        """Whether the memory of this kind of run was traced."""
        return _trace(self._folder / self.key(spec)) is not None

    def is_chosen(self, spec: RunSpec) -> bool:
        """Whether the micro-batch is chosen automatically and must fit into a known memory."""
        return spec.config.micro_batch == "auto" and self.allowed_gib(spec) is not None

    def allowed_gib(self, spec: RunSpec) -> float | None:
        """Memory that limits a run's micro-batch; None if nothing does, or it is not free [GiB]."""
        config, device = spec.config, self._device_of(spec.config)
        if takes_micro_batches_whole(config):
            return None
        limits = [] if config.memory_limit_gib is None else [config.memory_limit_gib]
        if self._on_gpu(config) and device.memory_gib is not None:
            limits.append(max(0.0, device.memory_gib / device.runs - _GPU_RESERVE_GIB))
        return min(limits, default=None)

    def key(self, spec: RunSpec) -> str:
        """Hash of everything that the memory of a micro-batch depends on."""
        code = code_hash(own_code(spec.kin.targets))
        known = spec.config.groups, plain_part(spec.config), code
        if known not in self._keys:
            text = json.dumps(self._about(spec), sort_keys=True)
            self._keys[known] = hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
        return self._keys[known]

    def record_trace(self, spec: RunSpec, trace: MemoryTrace) -> None:
        """Store the memory trace of this kind of run."""
        self._publish(spec, "trace.json", trace.model_dump_json())

    def learn(self, attempt: Attempt, outcome: Outcome) -> None:
        """Store what a run took and whether that was too much, so that no other run repeats it."""
        spec = attempt.spec
        limit, peak = spec.config.memory_limit_gib, (attempt.record() or {}).get("peak_memory_gib")
        if outcome == Outcome.OUT_OF_MEMORY:
            self.record_over(spec, limit_gib=None, why="a run ran out of memory")
        elif outcome == Outcome.FINISHED and peak:
            self.record_took(spec, peak)
            if limit is not None and peak > limit:
                self.record_over(spec, limit_gib=limit, why=f"a run took {peak:.3f} GiB")

    def record_took(self, spec: RunSpec, peak_gib: float) -> None:
        """Store the peak memory of a run [GiB]."""
        self._record(spec, "took", {"peak_gib": peak_gib})

    def record_over(self, spec: RunSpec, *, limit_gib: float | None, why: str) -> None:
        """Store that a run exceeded this limit, or with None, the memory of its device [GiB]."""
        self._record(spec, "over", {"limit_gib": limit_gib, "why": why})

    def describe(self, spec: RunSpec) -> str:
        """Text that describes the memory that a run must fit into."""
        limit = spec.config.memory_limit_gib
        stated = f"memory_limit_gib={limit:g}" if limit is not None else ""
        if not self._on_gpu(spec.config):
            return stated
        device = self._device_of(spec.config)
        size = f" ({device.memory_gib:.3g} GiB)" if device.memory_gib else ""
        shared = f", shared by {device.runs} runs" if device.runs > 1 else ""
        gpu = f"the memory of {device.kind}{size}{shared}"
        return f"{stated} and {gpu}" if stated else gpu

    def _fit(self, spec: RunSpec, known: dict[str, _Known] | None) -> Fit:
        is_given = spec.config.micro_batch != "auto"
        source, on_gpu = "given" if is_given else "limit", self._on_gpu(spec.config)
        if known is None:
            return Fit(spec=spec, source="to be traced" if self.is_chosen(spec) else source)
        found = known[key] = known.get(key := self.key(spec)) or _known(self._folder / key)
        if not self.is_chosen(spec):
            return _predicted(spec, found, on_gpu=on_gpu, source=source)
        allowed = self.allowed_gib(spec) or 0.0
        limit = spec.config.micro_batch_limit
        usable = usable_micro_batches(spec.split.rank_batch, limit=limit, bn_span=spec.bn_span)
        failing = [m for m in usable if found.fails(m, allowed, on_gpu=on_gpu)]
        fails = min(failing, default=None)
        chosen = max((m for m in usable if fails is None or m < fails), default=usable[0])
        if found.trace is None:
            source = "to be traced"
        elif found.trace.classes:
            source = "predicted"
        fit = _predicted(with_micro_batch(spec, chosen), found, on_gpu=on_gpu, source=source)
        refusal = self._refusal(fit) if fails == usable[0] else ""
        return replace(fit, fails=fails, refusal=refusal)

    def _device_of(self, config: RunConfig) -> Device:
        """The device that a run trains on; of a GPU that is not on this machine, only that much."""
        if config.accelerator == "cpu":
            return CPU
        is_elsewhere = config.accelerator == "gpu" and self._device == CPU
        return Device(kind="gpu") if is_elsewhere else self._device

    def _on_gpu(self, config: RunConfig) -> bool:
        return self._device_of(config).kind != CPU.kind

    def _about(self, spec: RunSpec) -> dict[str, Any]:
        device = self._device_of(spec.config)
        about = {**memory_part(spec.config, device), "versions": _versions()}
        code = code_hash(own_code(spec.kin.targets))
        return {**about, "code": code} if code else about

    @if_allowed()
    def _publish(self, spec: RunSpec, name: str, content: str) -> None:
        folder = self._folder / self.key(spec)
        folder.mkdir(parents=True, exist_ok=True)
        publish_json(folder / "about.json", self._about(spec))
        publish_text(folder / name, content)

    def _record(self, spec: RunSpec, word: str, content: Mapping[str, Any]) -> None:
        name, noted = f"{spec.split.micro_batch}-{word}.json", {**content, "run_id": spec.run_id}
        self._publish(spec, name, json.dumps(noted, indent=1))

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


def _predicted(spec: RunSpec, known: _Known, *, on_gpu: bool, source: str) -> Fit:
    """What is known of a run with its micro-batch; its config gets the predicted memory."""
    classes = known.classes(spec.split.micro_batch, on_gpu=on_gpu)
    if classes:
        spec = spec.with_predicted_memory(total_gib(classes))
    return Fit(spec=spec, source=source, classes=classes)


def _known(folder: Path) -> _Known:
    found: dict[str, dict[int, Any]] = {"took": {}, "over": {}}
    for word, key in (("took", "peak_gib"), ("over", "limit_gib")):
        for path in folder.glob(f"*-{word}.json"):
            content, micro_batch = read_mapping(path), path.stem.partition("-")[0]
            value = content.get(key, "")
            if micro_batch.isdecimal() and (
                isinstance(value, float | int) or (word, value) == ("over", None)
            ):
                found[word][int(micro_batch)] = value
    return _Known(trace=_trace(folder), took=found["took"], over=found["over"])


def _trace(folder: Path) -> MemoryTrace | None:
    try:
        return MemoryTrace.model_validate_json((folder / "trace.json").read_bytes())
    except (OSError, ValueError):
        return None


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "pytorch-lightning")}
