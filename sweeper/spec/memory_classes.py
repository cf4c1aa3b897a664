"""The memory of a rank by class: affine in the micro-batch, independent of the global batch.

Pure: no clock, no disk, no cluster.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
#: Of tensors; what else a process or a device holds is `DEVICE`.
CLASSES: tuple[str, ...] = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES)
DEVICE = "device"

_GIB = 2**30
#: The C library takes larger blocks from the system and gives them back; of smaller ones it keeps
#: what is freed, and most of that does not fit what is asked for next: measured, on Linux.
_KEPT_BELOW, _KEPT_PART, _STAYING_PART = 2**25, 0.65, 0.5
#: Of libraries' code, what training touches: measured, with torch 2.15 [GiB].
_CODE_GIB = 0.02


class MemoryTrace(BaseModel):
    """What was found of the memory of one kind of run, without training it.

    Attributes:
        classes: by micro-batch the bytes of each class at the peak of a step.
        sizes: of the smaller micro-batch's activations and temporaries, with how many have them.
        held_gib: what a process on a CPU holds besides: libraries and data [GiB].
        why_not: why nothing was found; empty if it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    classes: dict[int, dict[str, int]] = {}
    sizes: dict[int, int] = {}
    held_gib: float = 0.0
    why_not: str = ""

    def at(self, micro_batch: int) -> dict[str, float] | None:
        """The memory of each class with a micro-batch, on the line through the two traced [GiB].

        With one traced, activations and temporaries are in proportion to the micro-batch.
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
        """What a process on a CPU holds besides its tensors, at the most [GiB].

        A checkpoint is written to memory first, when activations are gone, as far as the C library
        gives them back.
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
