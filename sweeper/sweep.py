"""A sweep: check every point, skip what the ledger has, run the rest, say what came of it."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper import exit_codes
from sweeper.domain.outcomes import Outcome
from sweeper.domain.run_spec import RunSpec, run_spec
from sweeper.domain.schedule import silent_milestones
from sweeper.launch.local import Event
from sweeper.ledger import Ended, Ledger
from sweeper.view import View, view

Launch = Callable[[Sequence[RunSpec], Ledger], Iterator[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a grid comes to.

    Attributes:
        specs: every distinct run of the grid, in its order.
        ended: what the ledger already has of them.
        to_run: those to run now.
        repeats: points that are the same run as another; they differ only in where they run.
        warnings: what is allowed but probably not meant.
    """

    specs: Sequence[RunSpec]
    ended: Mapping[str, Ended]
    to_run: Sequence[RunSpec]
    repeats: int
    warnings: Sequence[str]


def plan(configs: Iterable[Mapping[str, Any]], ledger: Ledger) -> Plan:
    """Check every point of a grid and find out which runs are missing.

    Raises:
        ValueError: with one line per distinct mistake, if any point is impossible.
    """
    specs: dict[str, RunSpec] = {}
    mistakes: dict[str, int] = {}
    repeats = 0
    for config in configs:
        try:
            spec = run_spec(config)
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
        to_run=[spec for run_id, spec in specs.items() if _is_missing(ended.get(run_id))],
        repeats=repeats,
        warnings=list(dict.fromkeys(w for spec in specs.values() for w in _warnings(spec))),
    )


def run_sweep(configs: Iterable[Mapping[str, Any]], results: Path, launch: Launch) -> int:
    """Run a grid.

    Args:
        configs: the resolved config of every point.
        results: the results folder.
        launch: runs specs at some place.

    Returns:
        The exit code: 0 if every run has a result, 1 if any failed, 2 for bad input.
    """
    ledger = Ledger(results)
    try:
        planned = plan(configs, ledger)
        ledger.prepare()
    except ValueError as error:
        print(f"Nothing was started.\n{error}", file=sys.stderr)  # noqa: T201
        return exit_codes.BAD_INPUT
    with view(planned.specs, planned.ended, ledger) as shown:
        for warning in planned.warnings:
            shown.say(f"Warning: {warning}")
        if planned.repeats:
            shown.say(
                f"{planned.repeats} points of the grid are the same run as another: they differ "
                "only in where they run. Each run happens once, as its first point says."
            )
        if skipped := len(planned.specs) - len(planned.to_run):
            shown.say(f"{skipped} of {len(planned.specs)} runs already have a result.")
        try:
            _run(planned.to_run, ledger, launch, shown)
        except KeyboardInterrupt:
            shown.say("Stopped. What was trained is kept; repeat the command to go on from there.")
            return exit_codes.INTERRUPTED
    return _exit_code(shown.outcomes())


def _run(specs: Sequence[RunSpec], ledger: Ledger, launch: Launch, shown: View) -> None:
    if not specs:
        return
    for event in launch(specs, ledger):
        for attempt in event.began:
            shown.began(attempt)
        for attempt, outcome, reason in event.ended:
            shown.ended(attempt, outcome, reason)
        shown.refresh()


def _is_missing(ended: Ended | None) -> bool:
    return ended is None or not ended.outcome.is_result


def _exit_code(outcomes: Counter[Outcome]) -> int:
    return (
        exit_codes.DONE if all(outcome.is_result for outcome in outcomes) else exit_codes.RUN_FAILED
    )


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
