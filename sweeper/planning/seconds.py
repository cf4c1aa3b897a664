"""How long runs will take, from what runs of their kind took on the same device."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from sweeper.spec.config import Predicted
from sweeper.spec.memory import Device, work_part
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.store.ledger import Ledger
from sweeper.store.timings import Timing, read_timings

_READ = (
    "config_json", "micro_batch", "accumulation_steps", "epochs_completed", "steps",
    "train_s", "start_s", "wall_s", "device_kind",
)  # fmt: skip
#: With fewer runs seen than this, no share of 1 in 20 can be told from them.
_LEAST_RUNS_FOR_BOUNDS = 19
_FACTOR_UNTIL_THEN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """What a run will take, in one attempt, by what it does [seconds].

    Attributes:
        start: until training begins.
        steps: the optimizer steps, with what they exchange.
        between: evaluations, checkpoints and all else between epochs, and after the last.
        factors: 9 of 10 runs are to take between these multiples of the sum.
    """

    start: float
    steps: float
    between: float
    factors: tuple[float, float]

    @property
    def total(self) -> float:
        """All of it [seconds]."""
        return self.start + self.steps + self.between

    @property
    def parts(self) -> dict[str, float]:
        """What it consists of [seconds]."""
        return {"start": self.start, "steps": self.steps, "between_epochs": self.between}

    @property
    def predicted(self) -> Predicted:
        """As its row will say it."""
        least, most = (self.total * factor for factor in self.factors)
        return Predicted(s=self.total, least_s=least, most_s=most)


class Speeds:
    """What the runs in a results folder took, and what probes found, by kind and device."""

    def __init__(self, ledger: Ledger, device: Device) -> None:
        self._device = device
        found = _of_rows(ledger)
        self._factors = _factors(found.values())
        self._found = {**read_timings(ledger.results), **found}

    @property
    def are_known(self) -> bool:
        """Whether the time of any kind of run is known."""
        return bool(self._found)

    def of(self, spec: RunSpec) -> Seconds | None:
        """What a run will take; None if none of its kind was seen on its device."""
        seen = self._seen(kind_of(spec))
        if not seen:
            return None
        plan, firsts = spec.batch_plan, [first for first, _ in spec.batch_plan.batches()]
        return Seconds(
            start=median(timing.start_s for timing in seen),
            steps=sum(
                (end - first)
                * plan.steps_at(first)
                * _step_s(seen, plan.split_at(first).accumulation_steps)
                for first, end in pairwise([*firsts, spec.epochs])
            ),
            between=median(timing.between_s for timing in seen) * spec.epochs,
            factors=self._factors,
        )

    def _seen(self, kind: str) -> Sequence[Timing]:
        """On this device; where this machine has none, on the only GPU that such runs have seen."""
        by_device = {device: seen for (of, device), seen in self._found.items() if of == kind}
        accelerator = json.loads(kind)["accelerator"]
        if accelerator == "gpu" and self._device.kind == "cpu":
            on_gpus = [seen for device, seen in by_device.items() if device != "cpu"]
            return on_gpus[0] if len(on_gpus) == 1 else ()
        return by_device.get("cpu" if accelerator == "cpu" else self._device.kind, ())


def kind_of(spec: RunSpec) -> str:
    """All that the time of a micro-batch depends on but the device, as text."""
    return _kind(spec.config.resolved, spec.split.micro_batch)


def _kind(resolved: Mapping[str, Any], micro_batch: int) -> str:
    rule = resolved["lr_rule"].get("name")
    about = {
        **work_part(resolved),
        "micro_batch": micro_batch,
        "reproducible": bool(resolved.get("reproducible")),
        "measures_noise": rule == "adascale",
        "accelerator": resolved["accelerator"],
    }
    return json.dumps(about, sort_keys=True)


def _of_rows(ledger: Ledger) -> dict[tuple[str, str], list[Timing]]:
    """Of runs that finished in one attempt with one batch."""
    ended = ledger.ended().items()
    finished = {id for id, row in ended if row.outcome == Outcome.FINISHED and row.attempt == 1}
    found: dict[tuple[str, str], list[Timing]] = {}
    for row in ledger.rows(finished, _READ).values() if finished else ():
        try:
            resolved = json.loads(row["config_json"])
            if resolved["schedule"]["name"] == "growing_batch":
                continue
            kind = _kind(resolved, row["micro_batch"])
            timing = timing_of(row)
        except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
            continue  # no row of ours
        found.setdefault((kind, row["device_kind"]), []).append(timing)
    return found


def timing_of(row: Mapping[str, Any]) -> Timing:
    """What a run took that finished in one attempt with one batch."""
    start_s = row["start_s"] or 0.0
    return Timing(
        accumulation_steps=row["accumulation_steps"],
        step_s=row["train_s"] / row["steps"],
        start_s=start_s,
        between_s=(row["wall_s"] - row["train_s"] - start_s) / row["epochs_completed"],
    )


def _step_s(seen: Sequence[Timing], accumulation_steps: int) -> float:
    """Of a step of so many micro-batches: on the line through the two nearest numbers seen."""
    by_number: dict[int, list[float]] = {}
    for timing in seen:
        by_number.setdefault(timing.accumulation_steps, []).append(timing.step_s)
    by_distance = sorted(by_number, key=lambda seen: abs(math.log(seen / accumulation_steps)))
    nearest, *others = by_distance
    step_s = median(by_number[nearest])
    in_proportion = step_s * accumulation_steps / nearest
    if nearest == accumulation_steps or not others:
        return in_proportion
    each_s = (median(by_number[others[0]]) - step_s) / (others[0] - nearest)
    on_line = step_s + each_s * (accumulation_steps - nearest)
    return on_line if each_s > 0 and on_line > 0 else in_proportion


def _factors(found: Iterable[Sequence[Timing]]) -> tuple[float, float]:
    """Bounds of 9 in 10 ratios of a run's step to the median of the others of its kind."""
    ratios: list[float] = []
    for seen in found:
        alike: dict[int, list[float]] = defaultdict(list)
        for timing in seen:
            alike[timing.accumulation_steps].append(timing.step_s)
        for steps_s in alike.values():
            ratios += _to_median_of_others(sorted(steps_s))
    ratios.sort()
    if len(ratios) < _LEAST_RUNS_FOR_BOUNDS:
        least, most = 1 / _FACTOR_UNTIL_THEN, _FACTOR_UNTIL_THEN
        return min([least, *ratios]), max([most, *ratios])
    beyond = math.floor(0.05 * (len(ratios) + 1))
    return ratios[beyond - 1], ratios[-beyond]


def _to_median_of_others(ordered: Sequence[float]) -> list[float]:
    """Of each of some numbers in their order, to the median of the rest; none for one alone."""
    last = len(ordered) - 1
    return [
        2 * number / sum(ordered[k + (k >= i)] for k in ((last - 1) // 2, last // 2))
        for i, number in enumerate(ordered if last else ())
    ]
