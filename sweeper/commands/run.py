"""A sweep: check every point, skip what is settled, run the rest, say what came of it."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.console.live_table import View, view
from sweeper.planning.plan import Plan, plan, tasks
from sweeper.planning.tasks import Event, Task
from sweeper.spec import exit_codes
from sweeper.store.ledger import Ledger
from sweeper.store.pending_runs import list_pending

Launch = Callable[[Sequence[Task], Ledger], Iterator[Event]]

#: As soon as there are this many small files of settled runs, a sweep merges them.
_COMPACT_FROM = 500


def run_sweep(
    configs: Iterable[Mapping[str, Any]], settings: Mapping[str, Any], launch: Launch
) -> int:
    """Run a grid.

    Args:
        configs: the resolved config of every point.
        settings: `results`, `retry` and `rerun` of the command.
        launch: makes attempts at some place.

    Returns:
        The exit code: 0 if every run has a result, 1 if any has none, 2 for bad input.
    """
    ledger = Ledger(Path(settings["results"]))
    try:
        planned = plan(configs, ledger)
        ledger.prepare()
        to_do = tasks(planned, ledger, retry=settings["retry"], rerun=settings["rerun"])
    except ValueError as error:
        print(f"Nothing was started.\n{error}", file=sys.stderr)  # noqa: T201
        return exit_codes.BAD_INPUT
    with view(planned.specs, ledger) as shown:
        _say(planned, to_do, shown)
        try:
            attempts = [(task.spec, task.number) for task in to_do]
            with list_pending(attempts, ledger.results):
                return _follow(launch(to_do, ledger) if to_do else iter(()), ledger, shown)
        except KeyboardInterrupt:
            shown.say("Stopped. What was trained is kept; repeat the command to go on from there.")
            return exit_codes.INTERRUPTED
        except OSError as error:
            shown.say(
                f"{settings['results']} could not be written: {error.strerror}. What is there is "
                "kept; make room or give back the permission, and repeat the command."
            )
            return exit_codes.RUN_FAILED


def _follow(events: Iterator[Event], ledger: Ledger, shown: View) -> int:
    small_files = ledger.num_small_files()
    for event in events:
        shown.show(event)
        if event.is_detached:
            return exit_codes.DONE
        small_files += sum(end.outcome.is_result for end in event.ended)
        if small_files >= _COMPACT_FROM:
            from sweeper.store.compaction import compact  # pyarrow: 0.2 s

            compact(ledger.results)
            small_files = 0
    return exit_codes.DONE if shown.all_have_results else exit_codes.RUN_FAILED


def _say(planned: Plan, to_do: Sequence[Task], shown: View) -> None:
    for warning in planned.distinct_warnings:
        shown.say(f"Warning: {warning}")
    if planned.repeats:
        shown.say(
            f"{planned.repeats} points of the grid are the same run as another: they differ only "
            "in where they run. Each run happens once, as its first point says."
        )
    to_run = {task.spec.run_id for task in to_do}
    skipped = [row for row in planned.ended.values() if row.run_id not in to_run]
    if settled := sum(row.outcome.is_result for row in skipped):
        shown.say(f"{settled} of {len(planned.specs)} runs already have a result.")
    if failed := len(skipped) - settled:
        shown.say(f"{failed} failed runs are left as they are; retry=failed tries them again.")
