"""The memory of a rank by class: affine in the micro-batch, independent of the global batch.

Pure: no clock, no disk, no cluster.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
#: Classes of tensors; everything else that a process or a device holds is `DEVICE`.
CLASSES: tuple[str, ...] = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES)
DEVICE = "device"

_GIB = 2**30
#: The C library returns larger blocks to the system when they are freed. Smaller ones it keeps,
#: and most of them do not fit later requests. Measured on Linux.
_KEPT_BELOW, _KEPT_PART, _STAYING_PART = 2**25, 0.65, 0.5
#: Library code that only training pages in; measured with torch 2.15 [GiB].
_CODE_GIB = 0.02


class MemoryTrace(BaseModel):
    """What is known of the memory of one kind of run without training it.

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

    def at(self, micro_batch: int) -> dict[str, float] | None:
        """The memory of each class at a micro-batch, on the line through the two traced ones [GiB].

        If only one was traced, activations and temporaries are proportional to the micro-batch.
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

    def beside(self, micro_batch: int) -> float:
        """The most that a process on a CPU holds in addition to its tensors [GiB].

        A checkpoint is serialized in memory once activations are freed; it adds only what exceeds
        the part of them that the C library returned to the system.
        """
        if (found := self.at(micro_batch)) is None:
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
