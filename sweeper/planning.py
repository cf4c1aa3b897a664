"""What a grid comes to: every distinct run, what the ledger has of it, what is left to do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.attempt import recover, standing, tidy
from sweeper.domain.outcomes import Outcome
from sweeper.domain.run_spec import RunSpec, run_spec
from sweeper.domain.schedule import silent_milestones
from sweeper.ended import Ended
from sweeper.launch.events import Task
from sweeper.ledger import Ledger
from sweeper.measured_noise import with_measured_noise

RETRY_CHOICES = (None, "failed")
RERUN_CHOICES = (None, "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a grid comes to.

    Attributes:
        specs: every distinct run of the grid, in its order.
        ended: the current rows that the ledger has of them.
        repeats: points that are the same run as another; they differ only in where they run.
        warnings: what is allowed but probably not meant.
    """

    specs: Sequence[RunSpec]
    ended: Mapping[str, Ended]
    repeats: int
    warnings: Sequence[str]


def plan(configs: Iterable[Mapping[str, Any]], ledger: Ledger) -> Plan:
    """Check every point of a grid and look up its runs; changes nothing.

    Raises:
        ValueError: with one line per distinct mistake, if any point is impossible.
    """
    specs: dict[str, RunSpec] = {}
    mistakes: dict[str, int] = {}
    repeats = 0
    for config in configs:
        try:
            spec = run_spec(with_measured_noise(config, ledger))
            repeats += spec.run_id in specs
            specs.setdefault(spec.run_id, spec)
        except ValueError as error:
            mistakes[str(error)] = mistakes.get(str(error), 0) + 1
    if mistakes:
        raise ValueError("\n".join(_counted(text, times) for text, times in mistakes.items()))
    ended = ledger.ended()
    return Plan(
        specs=list(specs.values()),
        ended={run_id: ended[run_id] for run_id in specs if run_id in ended},
        repeats=repeats,
        warnings=list(dict.fromkeys(w for spec in specs.values() for w in _warnings(spec))),
    )


def tasks(planned: Plan, ledger: Ledger, *, retry: str | None, rerun: str | None) -> list[Task]:
    """The attempts to make now; abandoned ones get their rows first.

    Finished and diverged runs are settled; failed ones are tried again only on request; those
    that were cut off, timed out or out of memory are tried again.

    Args:
        planned: the grid.
        ledger: where its runs stand.
        retry: failed, or None.
        rerun: all, or None.

    Raises:
        ValueError: if retry or rerun is an unknown word.
    """
    _check_word("retry", retry, RETRY_CHOICES)
    _check_word("rerun", rerun, RERUN_CHOICES)
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
    stands = standing(ledger, spec.run_id, last)
    if stands is True:  # under way in another process: that attempt is what to wait for
        return Task(spec=spec, number=last)
    if stands is False:
        recover(ledger, spec.run_id, last)
        stands = standing(ledger, spec.run_id, last)
    settled = not isinstance(stands, bool) and _is_settled(stands[0], retry)
    return (
        None
        if settled and not rerun
        else Task(spec=spec, number=last + 1, from_scratch=bool(rerun))
    )


def _is_settled(outcome: Outcome, retry: str | None) -> bool:
    return outcome.is_result or (outcome == Outcome.FAILED and retry != "failed")


def _check_word(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    if value not in choices:
        words = " or ".join(str(choice or "null") for choice in choices)
        msg = f"{name} must be {words}; got {name}={value}."
        raise ValueError(msg)


def _counted(text: str, times: int) -> str:
    return text if times == 1 else f"{text} ({times} points of the grid)"


def _warnings(spec: RunSpec) -> Iterator[str]:
    config = spec.config
    if silent := silent_milestones(config["schedule"], spec.epochs):
        yield (
            f"schedule.milestones {silent} never fire: the training has {spec.epochs} epochs, "
            f"0 to {spec.epochs - 1}."
        )
    if config["bn_span"] == "micro":
        yield "bn_span=micro: BatchNorm follows the micro-batch, so the layout changes the results."
