"""Predicted time of runs, from the time that runs of their kind took on the same device.

results/timings/<hash>.json    timings of a kind of run on a device, as measured by probes
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sweeper.spec.config import Predicted, is_ours
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import Device, cost_settings
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.schedules import GROWING
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_text

_READ = (
    "config_json", "micro_batch", "accumulation_steps", "steps_per_epoch", "steps",
    "train_s", "start_s", "wall_s", "device_kind", "trunk",
)  # fmt: skip
#: On a machine that others share, sessions differ by up to this factor; bounds are never narrower.
_BETWEEN_SESSIONS = 1.5
_Seconds = Annotated[float, Field(ge=0)]


class Timing(BaseModel):
    """The time that a run took, by activity."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    #: micro-batches per rank per optimizer step [count].
    accumulation_steps: Annotated[int, Field(ge=1)]
    step_s: Annotated[float, Field(gt=0)]  # time of an optimizer step [seconds]
    start_s: _Seconds  # time until training began [seconds]
    between_s: _Seconds  # time of an epoch without its steps [seconds]


class _Stored(BaseModel):
    kind: str
    device: str
    timings: list[Timing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The predicted time of a run in a single attempt, by activity [seconds]."""

    start: float  # until training begins
    steps: float  # the optimizer steps, including the gradient exchange
    between: float  # evaluations, checkpoints and all else between epochs and after the last epoch

    @property
    def total(self) -> float:
        """Time of the whole run [seconds]."""
        return self.start + self.steps + self.between

    @property
    def predicted(self) -> Predicted:
        """The prediction as the run's row will record it."""
        return Predicted(
            s=self.total,
            least_s=self.total / _BETWEEN_SESSIONS,
            most_s=self.total * _BETWEEN_SESSIONS,
        )


class _UsualTimes:
    """Medians over runs of a kind on a device; of step times, by accumulation steps."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        by_number: dict[int, list[float]] = defaultdict(list)
        for timing in timings:
            by_number[timing.accumulation_steps].append(timing.step_s)
        self._step_s = {number: median(steps_s) for number, steps_s in by_number.items()}
        self._start_s = median(timing.start_s for timing in timings)
        self._between_s = median(timing.between_s for timing in timings)

    def predict(self, spec: RunSpec) -> Seconds:
        """The time of a run of this kind."""
        plan, total = spec.batch_plan, spec.total_steps
        firsts = [min(total, plan.steps_before(epoch) + step) for epoch, step in plan.starts]
        steps_s = sum(
            (end - first) * self._interpolate(plan.split_at(*place).accumulation_steps)
            for place, (first, end) in zip(plan.starts, pairwise([*firsts, total]), strict=True)
            if place >= plan.first
        )
        between_s = self._between_s * (spec.epochs - plan.first[0])
        own = spec.share_to_train
        return Seconds(start=self._start_s, steps=own * steps_s, between=own * between_s)

    def _interpolate(self, accumulation_steps: int) -> float:
        """Time of a step, on the line through the two nearest accumulation steps seen [seconds]."""
        seen = self._step_s
        by_distance = sorted(seen, key=lambda number: abs(math.log(number / accumulation_steps)))
        nearest, *others = by_distance
        in_proportion = seen[nearest] * accumulation_steps / nearest
        if nearest == accumulation_steps or not others:
            return in_proportion
        each_s = (seen[others[0]] - seen[nearest]) / (others[0] - nearest)
        on_line = seen[nearest] + each_s * (accumulation_steps - nearest)
        return on_line if each_s > 0 and on_line > 0 else in_proportion


class Speeds:
    """Times of the runs in a results folder and of time probes, by kind of run and device."""

    def __init__(self, ledger: Ledger, device: Device) -> None:
        self._device = device
        self._usual: dict[str, dict[str, _UsualTimes]] = defaultdict(dict)
        self._predicted: dict[str, Seconds | None] = {}
        timings = {**_read_stored(ledger.results), **_read_finished(ledger)}
        for (kind, device_kind), seen in timings.items():
            self._usual[kind][device_kind] = _UsualTimes(seen)

    @property
    def is_empty(self) -> bool:
        """Whether no run is timed."""
        return not self._usual

    def predict(self, spec: RunSpec) -> Seconds | None:
        """The time of a run; None if no run of its kind was seen on its device."""
        if spec.kind not in self._predicted:
            usual = self._usual_times(spec)
            self._predicted[spec.kind] = usual.predict(spec) if usual else None
        return self._predicted[spec.kind]

    def _usual_times(self, spec: RunSpec) -> _UsualTimes | None:
        """Medians on this device, or for a GPU run on a CPU machine, on the only GPU type seen."""
        by_device = self._usual.get(time_kind(spec.config.resolved, spec.split.micro_batch), {})
        accelerator = spec.config.accelerator
        if accelerator == "gpu" and not self._device.is_gpu:
            on_gpus = [usual for device, usual in by_device.items() if device != "cpu"]
            return on_gpus[0] if len(on_gpus) == 1 else None
        return by_device.get("cpu" if accelerator == "cpu" else self._device.kind)


def time_kind(resolved: Mapping[str, Any], micro_batch: int) -> str:
    """Everything that the time of a micro-batch depends on, except the device, as text.

    A row that is older than a key of today is of the same kind as a run without that key.
    """
    settings = _drop_empty(cost_settings(resolved))
    if settings.get("module") == {"_target_": "Classifier"}:
        del settings["module"]
    about = {
        **settings,
        "micro_batch": micro_batch,
        "reproducible": bool(resolved.get("reproducible")),
        "measures_noise": resolved["lr_rule"].get("name") == "adascale",
    }
    return json.dumps(about, sort_keys=True)


def _drop_empty(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not empty, with names of our classes that hold wherever they are."""
    kept = {
        key: _drop_empty(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if value is not None and value != {}
    }
    if is_ours(target := str(kept.get("_target_", ""))):
        kept["_target_"] = target.rpartition(".")[2]
    return kept


def row_timing(row: Mapping[str, Any]) -> Timing:
    """The timing of a run that finished in its first attempt at a constant batch."""
    start_s = row["start_s"] or 0.0
    return Timing(
        accumulation_steps=row["accumulation_steps"],
        step_s=row["train_s"] / row["steps"],
        start_s=start_s,
        between_s=(row["wall_s"] - row["train_s"] - start_s)
        / math.ceil(row["steps"] / row["steps_per_epoch"]),
    )


def _read_finished(ledger: Ledger) -> dict[tuple[str, str], list[Timing]]:
    """Timings of the runs that finished in their first attempt at a constant batch."""
    ended = ledger.ended().items()
    finished = {
        run_id for run_id, row in ended if row.outcome == Outcome.FINISHED and row.attempt == 1
    }
    found: dict[tuple[str, str], list[Timing]] = defaultdict(list)
    for row in ledger.rows(finished, _READ).values() if finished else ():
        try:
            resolved = json.loads(row["config_json"])
            is_branch = bool(resolved.get("branch") or row["trunk"])
            if not is_branch and resolved["schedule"]["name"] not in GROWING:
                timing = row_timing(row)
                kind = time_kind(resolved, row["micro_batch"])
                found[kind, row["device_kind"]].append(timing)
        except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
            continue  # not a row of ours
    return found


def _read_stored(results: Path) -> dict[tuple[str, str], list[Timing]]:
    """The timings of probes; a file that cannot be read counts as missing."""
    found: dict[tuple[str, str], list[Timing]] = {}
    for path in (results / "timings").glob("*.json"):
        try:
            stored = _Stored.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue
        if stored.timings:
            found[stored.kind, stored.device] = stored.timings
    return found


def store_timings(kind: str, device: str, timings: Sequence[Timing], results: Path) -> None:
    """Store the timings of a kind of run on a device, replacing earlier timings."""
    name = hashlib.sha256(f"{kind} {device}".encode()).hexdigest()[:12]
    content = _Stored(kind=kind, device=device, timings=list(timings))
    path = results / "timings" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_text(path, content.model_dump_json())
