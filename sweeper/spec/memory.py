"""What the memory of a micro-batch depends on. Pure: no clock, no disk, no cluster."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel

from sweeper.spec.config import Incidental, RunConfig, Scientific
from sweeper.spec.identity import INCIDENTAL


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
_PLAIN = (*LAYOUT, "accelerator", *sorted(Scientific.model_fields.keys() - WITHOUT_WORK))
#: Groups whose numbers may be sizes; of floats elsewhere, only whether they are zero matters.
_SIZED = frozenset({"data", "model"})


def memory_part(config: RunConfig, device: Device) -> dict[str, Any]:
    """The part of a config and a device that can change the memory of a micro-batch.

    Two runs with the same part may share measurements; the batch is not included, because
    accumulation costs no memory.

    Args:
        config: of a run.
        device: what the run trains on.
    """
    return {**work_part(config.resolved), "device": asdict(device)}


def plain_part(config: RunConfig) -> str:
    """What memory depends on in addition to the groups of a config, as text."""
    values = [getattr(config, key) for key in _PLAIN]
    return repr([value for value in values if not isinstance(value, BaseModel)])


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
