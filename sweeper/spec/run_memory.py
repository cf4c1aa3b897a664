"""The memory of a rank: what it depends on, and its classes.

It is affine in the micro-batch and independent of the global batch, as accumulation costs none.
Pure: no clock, no disk, no cluster.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from sweeper.spec.config import Incidental, RunConfig
from sweeper.spec.identity import INCIDENTAL

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
#: Classes of tensors; everything else that a process or a device holds is `DEVICE`.
CLASSES: tuple[str, ...] = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES)
DEVICE = "device"

#: Scientific keys that do not affect memory; every other key is assumed to.
_WITHOUT_MEMORY = frozenset(
    {
        "base_batch",
        "base_lr",
        "batch",
        "epochs",
        "loss_ceiling",
        "loss_span",
        "lr_rule",
        "schedule",
        "seed",
        "warmup",
        "warmup_start",
        "warmup_workers",
    }
)
#: Keys that, except for those of the layout, do not change what a micro-batch takes.
WITHOUT_WORK = _WITHOUT_MEMORY | frozenset(Incidental.model_fields)
#: Incidental keys that do change memory.
LAYOUT = ("devices", "num_nodes", "threads")
#: Groups whose numbers may be sizes; of floats elsewhere, only whether they are zero matters.
_SIZED = frozenset({"data", "model"})

_GIB = 2**30
#: The C library returns larger blocks to the system when they are freed. Smaller blocks it keeps,
#: and most of them do not fit later requests. Measured on Linux.
_KEPT_BELOW, _KEPT_PART, _STAYING_PART = 2**25, 0.65, 0.5
#: Library code that only training pages in; measured with torch 2.15 [GiB].
_CODE_GIB = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that runs train on.

    Attributes:
        kind: the name of the GPU, or cpu.
        memory_gib: memory of the GPU as reported by its driver; None on a CPU [GiB].
        runs: number of runs that share a GPU [count].
    """

    kind: str = "cpu"
    memory_gib: float | None = None
    runs: int = 1


#: The CPU of any machine.
CPU = Device()


def memory_part(config: RunConfig, device: Device) -> dict[str, Any]:
    """The part of a config and a device that can change the memory of a micro-batch.

    Two runs with the same part may share measurements; the batch is not included, because
    accumulation costs no memory.

    Args:
        config: of a run.
        device: what the run trains on.
    """
    return {**work_part(config.resolved), "device": asdict(device)}


def work_part(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved config that can change what a micro-batch of a given size takes."""
    changing = {
        key: _sizes(key, value)
        for key, value in resolved.items()
        if key not in WITHOUT_WORK and value not in (None, False)
    }
    return {**changing, **{key: resolved[key] for key in LAYOUT}}


def _sizes(key: str, value: Any) -> Any:
    """A config value, reduced to what memory depends on."""
    if isinstance(value, Mapping):
        incidental = INCIDENTAL.get(key, frozenset()) - {"num_workers"}
        kept = {k: v for k, v in value.items() if k not in incidental}
        return kept if key in _SIZED else {k: _sizes(k, v) for k, v in kept.items()}
    if isinstance(value, list | tuple):
        return [_sizes(key, item) for item in value]
    return bool(value) if isinstance(value, float) else value


class MemoryTrace(BaseModel):
    """What is known of the memory of a kind of run without training it.

    Attributes:
        classes: by micro-batch, the size of each class at the peak of a step [bytes].
        sizes: number of activations and temporaries of the smaller micro-batch by size [bytes].
        held_gib: what a process on a CPU holds in addition: libraries and data [GiB].
        why_not: why the trace failed; empty if it succeeded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    classes: dict[int, dict[str, int]] = {}
    sizes: dict[int, int] = {}
    held_gib: float = 0.0
    why_not: str = ""

    def classes_at(self, micro_batch: int) -> dict[str, float] | None:
        """Memory of each class at a micro-batch, on the line through the two traced sizes [GiB].

        If only the smaller was traced, activations and temporaries grow with the micro-batch.
        """
        if not self.classes:
            return None
        (first, small), *others = sorted(self.classes.items())
        if others:
            last, large = others[-1]
            share = (micro_batch - first) / (last - first)
            found = {k: small[k] + share * (large[k] - small[k]) for k in CLASSES}
        else:
            growing = {ACTIVATIONS, TEMPORARIES}
            found = {k: small[k] * (micro_batch / first if k in growing else 1) for k in CLASSES}
        return {name: max(0.0, size) / _GIB for name, size in found.items()}

    def other_gib(self, micro_batch: int) -> float:
        """The most that a process on a CPU holds in addition to its tensors [GiB].

        A checkpoint is serialized in memory once activations are freed; it adds only what exceeds
        the part of them that the C library returned to the system.
        """
        if (found := self.classes_at(micro_batch)) is None:
            return self.held_gib
        share = micro_batch / min(self.classes)
        sizes = (size * share * n for size, n in self.sizes.items() if size * share < _KEPT_BELOW)
        small = sum(sizes) / _GIB
        back = found[ACTIVATIONS] + found[TEMPORARIES] - _STAYING_PART * small
        checkpoint = max(0.0, found[PARAMETERS] + found[OPTIMIZER_STATE] - back)
        return self.held_gib + _CODE_GIB + _KEPT_PART * small + checkpoint


def total_gib(classes: Mapping[str, float]) -> float:
    """All classes together [GiB]."""
    return sum(classes.values())
