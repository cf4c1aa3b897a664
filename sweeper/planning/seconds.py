"""Predicted time of runs, from the time that runs of their kind took on the same device."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from sweeper.planning.exchange import exposed_s
from sweeper.spec.config import Predicted, is_ours
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import LAYOUT, WITHOUT_WORK, Device, work_part
from sweeper.spec.run_spec import RunSpec
from sweeper.store.ledger import Ledger
from sweeper.store.timings import Timing, read_timings

_READ = (
    "config_json", "micro_batch", "accumulation_steps", "epochs_completed", "steps",
    "train_s", "start_s", "wall_s", "device_kind", "num_parameters",
)  # fmt: skip
#: Keys that distinguish kinds of runs, in addition to those that micro-batch memory depends on.
_OF_KIND = ("lr_rule", "reproducible", *LAYOUT)
#: On a machine that others share, sessions differ by up to this factor; bounds are never narrower.
BETWEEN_SESSIONS = 1.5
#: Number of runs per kind whose curves are read, to tell evaluations from checkpoints.
_CURVES_READ = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The predicted time of a run in one attempt, by activity [seconds].

    Attributes:
        start: until training begins.
        steps: the optimizer steps, including the gradient exchange.
        between: evaluations, checkpoints and all else between epochs and after the last epoch.
        exchange: part of the steps: the exchange that the backward pass does not hide; 0 if it is
            not known.
        evaluations: part of `between`; 0 if not known.
    """

    start: float
    steps: float
    between: float
    exchange: float = 0.0
    evaluations: float = 0.0

    @property
    def total(self) -> float:
        """Time of the whole run [seconds]."""
        return self.start + self.steps + self.between

    @property
    def parts(self) -> dict[str, float]:
        """The total by part; the parts do not overlap [seconds]."""
        return {
            "start": self.start,
            "steps": self.steps - self.exchange,
            "exchange": self.exchange,
            "evaluations": self.evaluations,
            "checkpoints": self.between - self.evaluations,
        }

    @property
    def predicted(self) -> Predicted:
        """The prediction as the run's row will record it."""
        return Predicted(
            s=self.total,
            least_s=self.total / BETWEEN_SESSIONS,
            most_s=self.total * BETWEEN_SESSIONS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """Medians of `Timing` over runs of a kind on a device; step times by accumulation steps."""

    start_s: float
    between_s: float
    evaluation_s: float
    num_parameters: int
    step_s: Mapping[int, float]

    @classmethod
    def from_timings(cls, seen: Sequence[Timing]) -> "_Usual":
        by_number: dict[int, list[float]] = defaultdict(list)
        for timing in seen:
            by_number[timing.accumulation_steps].append(timing.step_s)
        between_s = median(timing.between_s for timing in seen)
        known_s = [timing.evaluation_s for timing in seen if timing.evaluation_s is not None]
        return cls(
            start_s=median(timing.start_s for timing in seen),
            between_s=between_s,
            evaluation_s=min(between_s, median(known_s)) if known_s else 0.0,
            num_parameters=max(timing.num_parameters or 0 for timing in seen),
            step_s={number: median(steps_s) for number, steps_s in by_number.items()},
        )


class Speeds:
    """Times of the runs in a results folder and of time probes, by kind of run and device."""

    def __init__(self, ledger: Ledger, device: Device) -> None:
        self._device = device
        found = _finished_timings(ledger)
        self._usual: dict[str, dict[str, _Usual]] = defaultdict(dict)
        self._of_kind: dict[str, Seconds | None] = {}
        for (kind, on), seen in {**read_timings(ledger.results), **found}.items():
            if seen:
                self._usual[kind][on] = _Usual.from_timings(seen)

    @property
    def are_known(self) -> bool:
        """Whether the time of any kind of run is known."""
        return bool(self._usual)

    def of(self, spec: RunSpec) -> Seconds | None:
        """The predicted time of a run; None if no run of its kind was seen on its device."""
        if spec.kind not in self._of_kind:
            self._of_kind[spec.kind] = self._predict(spec)
        return self._of_kind[spec.kind]

    def _predict(self, spec: RunSpec) -> Seconds | None:
        usual = self._usual_of(spec)
        if not usual:
            return None
        plan, firsts = spec.batch_plan, [first for first, _ in spec.batch_plan.batches()]
        steps_s, exchange_s = 0.0, 0.0
        for first, end in pairwise([*firsts, spec.epochs]):
            num_steps = (end - first) * plan.steps_at(first)
            split = plan.split_at(first)
            step_s = _step_s(usual.step_s, split.accumulation_steps)
            micro_s = step_s / split.accumulation_steps
            steps_s += num_steps * step_s
            exchanged_s = exposed_s(spec.config, usual.num_parameters, micro_s)
            exchange_s += num_steps * min(step_s, exchanged_s)
        return Seconds(
            start=usual.start_s,
            steps=steps_s,
            between=usual.between_s * spec.epochs,
            exchange=exchange_s,
            evaluations=usual.evaluation_s * spec.epochs,
        )

    def _usual_of(self, spec: RunSpec) -> _Usual | None:
        """Medians on this device, or for a GPU run on a CPU machine, on the only GPU type seen."""
        by_device = self._usual.get(kind_of(spec), {})
        accelerator = spec.config.accelerator
        if accelerator == "gpu" and self._device.kind == "cpu":
            on_gpus = [usual for device, usual in by_device.items() if device != "cpu"]
            return on_gpus[0] if len(on_gpus) == 1 else None
        return by_device.get("cpu" if accelerator == "cpu" else self._device.kind)


def kind_of(spec: RunSpec) -> str:
    """Everything that the time of a micro-batch depends on, except the device, as text."""
    return _kind(spec.config.resolved, spec.split.micro_batch)


def _kind(resolved: Mapping[str, Any], micro_batch: int) -> str:
    read = {k: v for k, v in resolved.items() if k not in WITHOUT_WORK or k in _OF_KIND}
    return _kind_of(json.dumps(read), micro_batch)


@lru_cache(maxsize=10_000)
def _kind_of(text: str, micro_batch: int) -> str:
    """The kind, from the keys that matter as JSON; cached, as most runs of a folder share them."""
    resolved = json.loads(text)
    rule = resolved["lr_rule"].get("name")
    about = {
        **_as_of_any_version(work_part(resolved)),
        "micro_batch": micro_batch,
        "reproducible": bool(resolved.get("reproducible")),
        "measures_noise": rule == "adascale",
    }
    return json.dumps(about, sort_keys=True)


def _as_of_any_version(part: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that old and new rows spell alike, though keys were added and our classes moved.

    Earlier runs have no module key: they trained our classifier.
    """
    kept = {
        key: _as_of_any_version(value) if isinstance(value, Mapping) else value
        for key, value in part.items()
        if value is not None and value != {}
    }
    target = str(kept.get("_target_", ""))
    if is_ours(target):
        kept["_target_"] = target.rpartition(".")[2]
    if kept.get("module") == {"_target_": "Classifier"}:
        del kept["module"]
    return kept


def _finished_timings(ledger: Ledger) -> dict[tuple[str, str], list[Timing]]:
    """By kind and device, the runs that finished in one attempt at a constant batch."""
    ended = ledger.ended().items()
    finished = {
        run_id for run_id, row in ended if row.outcome == Outcome.FINISHED and row.attempt == 1
    }
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in ledger.rows(finished, _READ).values() if finished else ():
        try:
            kind = _kind_of_text(_without_seed(row["config_json"]), row["micro_batch"])
            if kind is not None:
                rows[kind, row["device_kind"]].append(row)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # not our row
    few = [row["run_id"] for alike in rows.values() for row in alike[:_CURVES_READ]]
    elapsed_s = ledger.elapsed(few) if few else {}
    return {
        key: [t for row in alike if (t := _timing_or_none(row, elapsed_s.get(row["run_id"])))]
        for key, alike in rows.items()
    }


def _without_seed(text: str) -> str:
    """A config's JSON with its seed set to 0, so that most rows of a folder share the text."""
    return re.sub(r'"seed": \d+', '"seed": 0', text) if text.count('"seed"') == 1 else text


@lru_cache(maxsize=10_000)
def _kind_of_text(config: str, micro_batch: int) -> str | None:
    """The kind of a run, from its config as JSON; None if its batch grows."""
    resolved = json.loads(config)
    return None if resolved["schedule"]["name"] == "growing_batch" else _kind(resolved, micro_batch)


def _timing_or_none(row: Mapping[str, Any], elapsed_s: float | None) -> Timing | None:
    try:
        return timing_of(row, elapsed_s)
    except (ValueError, TypeError, ZeroDivisionError):
        return None  # not a row of ours


def timing_of(row: Mapping[str, Any], elapsed_s: float | None) -> Timing:
    """The timing of a run that finished in one attempt at a constant batch.

    Args:
        row: of the run.
        elapsed_s: time of training and validation according to its curve [seconds].
    """
    start_s = row["start_s"] or 0.0
    return Timing(
        accumulation_steps=row["accumulation_steps"],
        step_s=row["train_s"] / row["steps"],
        start_s=start_s,
        between_s=(row["wall_s"] - row["train_s"] - start_s) / row["epochs_completed"],
        evaluation_s=evaluation_s(row, elapsed_s),
        num_parameters=row["num_parameters"],
    )


def evaluation_s(row: Mapping[str, Any], elapsed_s: float | None) -> float | None:
    """Mean time of an evaluation, with which a curve's time ends; None if not known [seconds]."""
    if elapsed_s is None or not row["epochs_completed"]:
        return None
    return max(0.0, (elapsed_s - row["train_s"]) / row["epochs_completed"])


def _step_s(seen: Mapping[int, float], accumulation_steps: int) -> float:
    """Time of a step, on the line through the two nearest accumulation steps seen [seconds]."""
    by_distance = sorted(seen, key=lambda number: abs(math.log(number / accumulation_steps)))
    nearest, *others = by_distance
    step_s = seen[nearest]
    in_proportion = step_s * accumulation_steps / nearest
    if nearest == accumulation_steps or not others:
        return in_proportion
    each_s = (seen[others[0]] - step_s) / (others[0] - nearest)
    on_line = step_s + each_s * (accumulation_steps - nearest)
    return on_line if each_s > 0 and on_line > 0 else in_proportion
