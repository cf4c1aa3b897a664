"""The memory of a rank: what it depends on, and its classes.

It is affine in the micro-batch and independent of the global batch, as accumulation costs none.
Pure: no clock, no disk, no cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from sweeper.spec.config import Incidental
from sweeper.spec.identity import INCIDENTAL

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
#: Classes of tensors; everything else that a process or a device holds is `DEVICE`.
CLASSES: tuple[str, ...] = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES)
DEVICE = "device"

#: Scientific keys that do not affect memory; every other key is assumed to.
_WITHOUT_MEMORY = frozenset((
    "base_batch", "base_lr", "batch", "branch", "ema_rule", "epochs", "examples", "loss_ceiling",
    "loss_span", "lr_rule", "schedule", "seed", "steps", "warmup", "warmup_start", "warmup_unit",
    "warmup_workers", "wd_rule",
))  # fmt: skip
#: Incidental keys that do affect it.
_LAYOUT = ("devices", "num_nodes", "threads")
#: The same of keys that were added later.
_LATER = ("strategy", "fsdp_blocks", "fsdp_gradients", "compile", "checkpoint_activations")
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

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind != "cpu"


#: The CPU of any machine.
CPU = Device()


def cost_settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a resolved config that change the memory or time of a micro-batch.

    The batch is not among them, since accumulation takes no memory.
    """
    unrelated = _WITHOUT_MEMORY | Incidental.model_fields.keys()
    changing = {
        key: _reduce_value(key, value)
        for key, value in resolved.items()
        if key not in unrelated - {*_LATER} and value not in (None, False)
    }
    return {**changing, **{key: resolved[key] for key in _LAYOUT}}


def _reduce_value(key: str, value: Any) -> Any:
    """A config value, reduced to what memory depends on."""
    if isinstance(value, Mapping):
        incidental = INCIDENTAL.get(key, frozenset()) - {"num_workers"}
        kept = {k: v for k, v in value.items() if k not in incidental}
        return kept if key in _SIZED else {k: _reduce_value(k, v) for k, v in kept.items()}
    if isinstance(value, list | tuple):
        return [_reduce_value(key, item) for item in value]
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

    def classes_at(self, micro_batch: int, *, on_gpu: bool) -> dict[str, float]:
        """Memory of each class and of `DEVICE` at a micro-batch; empty if not known [GiB].

        It lies on the line through the two traced sizes. If only the smaller was traced,
        activations and temporaries grow in proportion. On a GPU, `DEVICE` is 0: not known. On a
        CPU it has the blocks that the C library keeps, and a checkpoint, which is serialized in
        memory once activations are freed: it adds what exceeds the part of them that was returned
        to the system.
        """
        if not self.classes:
            return {}
        (first, small), *others = sorted(self.classes.items())
        growth = dict.fromkeys(CLASSES, 1) | {ACTIVATIONS: 2, TEMPORARIES: 2}
        doubled = 2 * first, {name: small[name] * growth[name] for name in CLASSES}
        last, large = others[-1] if others else doubled
        share = (micro_batch - first) / (last - first)
        found = {k: max(0.0, small[k] + share * (large[k] - small[k])) / _GIB for k in CLASSES}
        if on_gpu:
            return {**found, DEVICE: 0.0}
        sizes = {size * micro_batch / first: number for size, number in self.sizes.items()}
        kept_gib = sum(size * n for size, n in sizes.items() if size < _KEPT_BELOW) / _GIB
        returned_gib = found[ACTIVATIONS] + found[TEMPORARIES] - _STAYING_PART * kept_gib
        saved_gib = found[PARAMETERS] + found[OPTIMIZER_STATE]
        device_gib = self.held_gib + _CODE_GIB + _KEPT_PART * kept_gib
        return {**found, DEVICE: device_gib + max(0.0, saved_gib - returned_gib)}
