"""The plan of a grid: every run with its status, the tasks left, the events of making them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.spec.config import RunConfig, run_config
from sweeper.spec.lr_rules import OwnRule, Saturating, Surge
from sweeper.spec.memory import Device
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.warnings import find_warnings
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger, RowFile
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.standing import Open, recover, standing, tidy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a grid.

    `ended` are the current rows that the ledger has of its runs; `repeats` points that are the
    same run as another and differ only in where they run; `warnings`, by run id, what is
    allowed but probably not meant; `fits`, by run id, what is known of the micro-batches, empty
    if not read.
    """

    specs: Sequence[RunSpec]
    ended: Mapping[str, RowFile]
    repeats: int
    warnings: Mapping[str, Sequence[str]]
    fits: Mapping[str, Fit]

    @property
    def distinct_warnings(self) -> list[str]:
        """Each warning once."""
        return list(dict.fromkeys(text for texts in self.warnings.values() for text in texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to be made.

    `number` is that of the attempt to make, 1-based; `from_scratch` ignores an earlier
    attempt's checkpoint.
    """

    spec: RunSpec
    number: int
    from_scratch: bool = False


#: What a place to run is given: tasks in their order, taken one by one as room appears. None means
#: that there is no task just now: what has ended is reported first, then asked again.
Tasks = Iterable[Task | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened since the last event.

    `began` are attempts that started here, `elsewhere` those found running in another process;
    `ended` says by run id how attempts ended, here or there; `queued` are ids of runs that wait
    in a queue, `said` sentences for the user; `is_detached` if the runs continue without this
    process.
    """

    began: Sequence[Attempt] = ()
    elsewhere: Sequence[Attempt] = ()
    ended: Mapping[str, End] = field(default_factory=dict[str, End])
    queued: Sequence[str] = ()
    said: Sequence[str] = ()
    is_detached: bool = False


def plan(
    configs: Iterable[Mapping[str, Any]], ledger: Ledger, *, device: Device | None = None
) -> Plan:
    """Check every point of a grid and find its runs in the ledger; changes nothing.

    The device is what they will train on, to find the micro-batches known to fit; None leaves
    that to the launcher. ValueError, with a line per distinct mistake, if any point is impossible.
    """
    specs: dict[str, RunSpec] = {}
    mistakes: dict[str, int] = {}
    repeats = 0
    for config in configs:
        try:
            spec = run_spec(_with_measured_noise(run_config(config), ledger))
            repeats += spec.run_id in specs
            specs.setdefault(spec.run_id, spec)
        except ValueError as error:
            for line in str(error).splitlines():
                mistakes[line] = mistakes.get(line, 0) + 1
    if mistakes:
        raise ValueError("\n".join(_counted(text, times) for text, times in mistakes.items()))
    ended = ledger.ended()
    probes = MemoryCache(ledger.results, device) if device else None
    fits = {run_id: probes.fit(spec) for run_id, spec in specs.items()} if probes else {}
    known = {run_id: fit.bounds for run_id, fit in fits.items()}
    return Plan(
        specs=[fits[run_id].spec if fits else spec for run_id, spec in specs.items()],
        ended={run_id: ended[run_id] for run_id in specs if run_id in ended},
        repeats=repeats,
        warnings=find_warnings(list(specs.values()), known),
        fits=fits,
    )


def tasks(planned: Plan, ledger: Ledger, *, retry: str | None, rerun: str | None) -> list[Task]:
    """The attempts to make now; abandoned ones get their rows first.

    Finished and diverged runs are settled; failed ones are tried again only on request; those
    that were cut off, timed out or out of memory are tried again.
    """
    tidy(ledger)
    if rerun:
        ledger.supersede({spec.run_id for spec in planned.specs})
    return [task for spec in planned.specs if (task := _task(spec, planned, ledger, retry, rerun))]


def _task(
    spec: RunSpec, planned: Plan, ledger: Ledger, retry: str | None, rerun: str | None
) -> Task | None:
    ended = planned.ended.get(spec.run_id)
    if ended and not rerun and _is_settled(ended.outcome, retry):
        return None
    last = ledger.last_attempt(spec.run_id)
    if last == 0 or (ended and ended.attempt >= last):
        return Task(spec=spec, number=last + 1, from_scratch=bool(rerun))
    end = standing(ledger, spec.run_id, last)
    if end is Open.HELD:  # running in another process: that attempt is what to wait for
        return Task(spec=spec, number=last)
    if end is Open.ABANDONED:
        end = recover(ledger, spec.run_id, last)
    is_settled = end is not None and _is_settled(end.outcome, retry)
    again = Task(spec=spec, number=last + 1, from_scratch=bool(rerun))
    return None if is_settled and not rerun else again


def _is_settled(outcome: Outcome, retry: str | None) -> bool:
    return outcome.is_result or (outcome == Outcome.FAILED and retry != "failed")


def _counted(text: str, times: int) -> str:
    return text if times == 1 else f"{text} ({times} points of the grid)"


def _with_measured_noise(config: RunConfig, ledger: Ledger) -> RunConfig:
    """The config with the number in place of ``lr_rule.noise_scale=measured``.

    The number belongs to the run's identity; where it comes from does not.
    """
    rule = config.lr_rule
    is_known = isinstance(rule, Saturating | Surge | OwnRule)
    if not is_known or getattr(rule, "noise_scale", None) != "measured":
        return config
    named = rule.measured_in
    row = ledger.rows({str(named)}, ["noise_scale"]).get(str(named)) if named else None
    if row is None or row["noise_scale"] is None:
        msg = (
            "lr_rule.noise_scale=measured needs lr_rule.measured_in, a run in "
            f"{ledger.results} that has ended and measured its noise; got lr_rule.measured_in="
            f"{named}. Train one with noise_span=... and write +lr_rule.measured_in=RUN_ID."
        )
        raise ValueError(msg)
    measured = {**config.resolved["lr_rule"], "noise_scale": row["noise_scale"]}
    return config.replaced(lr_rule=measured)
