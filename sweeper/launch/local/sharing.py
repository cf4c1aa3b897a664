"""How many runs share a GPU: as many of a kind as fit, judging by what one of them took alone.

    results/sharing/<kind>.json   the most that runs took of a GPU, and the id of the latest

A kind is everything that the memory of a micro-batch depends on, with the micro-batch and the GPU.
Until a run of a kind has been measured for long enough alone on a GPU, each of them runs alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sweeper.spec.memory import Device
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt
from sweeper.store.gpu_use import gpu_taken
from sweeper.store.memory_cache import MemoryCache
from sweeper.store.publish import if_allowed, publish_text

#: Fraction of a GPU's memory that runs may share, as equal runs were seen to differ.
_PART_OF_MEMORY = 0.9
#: The most runs on a GPU, however small: each also takes a core and memory of the machine.
_MOST = 8


class _Taken(BaseModel):
    """A run's use of its GPU: memory [GiB], and fraction of the time that the GPU was busy."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run_id: str
    device_gib: Annotated[float, Field(gt=0)]
    use_frac: Annotated[float, Field(ge=0, le=1)]

    def runs(self, memory_gib: float) -> int:
        """How many such runs fit on a GPU by memory, without waiting for each other [count]."""
        by_memory = math.floor(_PART_OF_MEMORY * memory_gib / self.device_gib)
        by_use = math.floor(1 / max(self.use_frac, 1 / _MOST))
        return max(1, min(by_memory, by_use))


@dataclass(frozen=True, slots=True)
class Share:
    """How a run may share a GPU with others of its kind.

    Attributes:
        kind: only runs of the same kind share a GPU.
        runs: the most that share it [count].
        environment: variables that such a run needs.
    """

    kind: str
    runs: int
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def has_room_beside(others: Sequence[Share], share: Share | None) -> bool:
    """Whether a GPU with these runs has room for one more, of this share or, if None, any."""
    most = min((other.runs for other in [*others, *([share] if share else [])]), default=1)
    is_alike = share is None or all(other.kind == share.kind for other in others)
    return not others or (is_alike and len(others) < most)


class Sharing:
    """What is known about runs that share GPUs of one kind.

    Args:
        results: the results folder, where it is stored.
        device: the device that runs train on.
        environment: variables for runs that share a GPU.
    """

    def __init__(self, results: Path, device: Device, environment: Mapping[str, str]) -> None:
        self._memory = MemoryCache(results, device)
        self._device, self._environment = device, environment
        self._folder = results / "sharing"
        self._said: list[str] = []
        self._noted: set[str] = set()

    def of(self, spec: RunSpec) -> Share:
        """How a run may share its GPU."""
        fitted = self._memory.fit(spec).spec
        kind, memory_gib = self._kind(fitted), self._device.memory_gib
        taken = self._read(kind)
        if taken is None or memory_gib is None or spec.split.world_size > 1:
            return Share(kind, 1)
        runs = taken.runs(memory_gib)
        self._say(
            f"{runs} {kind}",
            f"{several(runs, 'run')} like {spec.point} per GPU, "
            f"{'with' if self._environment else 'without'} MPS: one alone took "
            f"{taken.device_gib:.3g} of {memory_gib:.3g} GiB and used the GPU "
            f"{100 * taken.use_frac:.0f} % of the time.",
        )
        return Share(kind, runs, self._environment if runs > 1 else {})

    def learn(self, attempt: Attempt, outcome: Outcome) -> None:
        """Store what a run took if it was alone on its GPU."""
        spec = attempt.spec
        if outcome != Outcome.FINISHED or spec.config.accelerator == "cpu":
            return
        if found := gpu_taken(attempt.folder):
            self._remember(spec, *found)
        elif self._read(kind := self._kind(spec)) is None:
            self._say(
                kind,
                f"1 run like {spec.point} per GPU: its use of the GPU could not be measured (its "
                "log says why), or not for long enough.",
            )

    def refuse(self, attempt: Attempt) -> None:
        """Let this kind of run share no GPU, because one ran out of memory."""
        self._remember(attempt.spec, self._device.memory_gib or 1.0, 1.0)

    def take_notes(self) -> list[str]:
        """New remarks for the user: how many runs share a GPU, and why."""
        said, self._said = self._said, []
        return said

    def _say(self, key: str, text: str) -> None:
        """Add a remark, once for each key."""
        if key not in self._noted:
            self._noted.add(key)
            self._said.append(text)

    def _kind(self, fitted: RunSpec) -> str:
        return f"{self._memory.key(fitted)}-{fitted.split.micro_batch}"

    def _read(self, kind: str) -> _Taken | None:
        try:
            return _Taken.model_validate_json((self._folder / f"{kind}.json").read_bytes())
        except (OSError, ValueError):
            return None

    def _remember(self, spec: RunSpec, device_gib: float, use_frac: float) -> None:
        kind = self._kind(spec)
        if before := self._read(kind):
            device_gib = max(device_gib, before.device_gib)
            use_frac = max(use_frac, before.use_frac)
        taken = _Taken(run_id=spec.run_id, device_gib=device_gib, use_frac=use_frac)
        with if_allowed():
            self._folder.mkdir(parents=True, exist_ok=True)
            publish_text(self._folder / f"{kind}.json", taken.model_dump_json())
