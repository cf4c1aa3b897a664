"""`sweeper status`: the results so far, what is running, waiting or failed, and why."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeper.console.differences import Differences
from sweeper.console.live import RunState
from sweeper.console.printing import say, text_console
from sweeper.console.runs import ROW_COLUMNS, RunLine, describe_counts, line_of_row, runs_table
from sweeper.launch.queue.queue import Queue, list_queued
from sweeper.launch.slurm.submissions import list_layouts, list_waiting_runs
from sweeper.spec.config import Facts
from sweeper.spec.outcomes import DONE, Outcome
from sweeper.spec.run_spec import read_run_spec
from sweeper.spec.sentences import printable, several
from sweeper.store.attempt import Attempt, AttemptState, Open, attempt_state, is_cancelled
from sweeper.store.damaged import consequence, find_damaged, sound_rows
from sweeper.store.file_names import RowFile, list_row_files
from sweeper.store.ledger import Ledger
from sweeper.store.pending_runs import read_pending_runs
from sweeper.store.questions import read_questions
from sweeper.store.run_columns import metric_columns, planned_columns
from sweeper.store.step_progress import read_step_progress

_STATES_SHOWN = 60
_CURVE_ROWS_SHOWN = 5
_LINES_BESIDE_TABLE = 8  # with --watch
_IN_QUEUE = {"queued", "submitted"}  # states of a run's SLURM job
_LOOK_EVERY_S = 2.0  # and at most for a fifth of the time


def main(arguments: Sequence[str]) -> int:
    """Print the state of a results folder or a run; ValueError if there is none, or no terminal."""
    options, console = _parser().parse_intermixed_args(arguments), text_console()
    ledger, run_id = find_named(options, "status")
    if options.json:
        found = run_overview(ledger, run_id) if run_id else overview(ledger)
        say(json.dumps(found, default=str))
    elif not options.watch:
        _show(ledger, run_id, console, _STATES_SHOWN)
    elif not console.is_terminal:
        msg = "--watch must have a terminal; got a file or a pipe. Leave it out."
        raise ValueError(msg)
    else:
        with suppress(KeyboardInterrupt):
            watch(ledger, run_id, console)
    return DONE


def find_named(options: argparse.Namespace, command: str) -> tuple[Ledger, str]:
    """The folder and the run that were named, the run empty for a folder; ValueError if neither."""
    ledger = Ledger(Path(options.results))
    run_id = find_run(ledger, options.what) if options.what else ""
    if run_id or (options.what is None and ledger.results.is_dir()):
        return ledger, run_id
    got = options.results if options.what is None else options.what
    msg = (
        f"{command} needs a results folder or a run id; got {got}. Run a sweep first, name its "
        f"folder, or a run id that is in {options.results} (--results names another)."
    )
    raise ValueError(msg)


def watch(ledger: Ledger, run_id: str, console: Console) -> None:
    """Refresh the state until nothing is running or waiting, showing as many runs as fit."""
    is_open = True
    while is_open:
        began = time.monotonic()
        room = max(1, (console.height - _LINES_BESIDE_TABLE) * 3 // 5)  # a failure has two lines
        with console.capture() as captured:  # before clearing, so that the terminal is never empty
            is_open = _show(ledger, run_id, console, min(room, _STATES_SHOWN))
        console.clear()
        console.file.write(captured.get())
        console.file.flush()
        if is_open:
            time.sleep(max(_LOOK_EVERY_S, 4 * (time.monotonic() - began)))


def _show(ledger: Ledger, run_id: str, console: Console, at_most: int) -> bool:
    """Print the state of a run or of a folder; return whether it may still change."""
    if run_id:
        found = run_overview(ledger, run_id)
        _show_run(found, console)
        return any(attempt["end"] == Open.HELD for attempt in found["attempts"][-1:])
    found = overview(ledger)
    _show_overview(found, ledger, console, at_most)
    is_running = any(run["state"] == Open.HELD for run in found["running"])
    in_queue = [line for line in found["waiting"] if line["state"] in _IN_QUEUE]
    return bool(is_running or in_queue or found["pending"])


def overview(ledger: Ledger) -> dict[str, Any]:
    """Counts by outcome; running, waiting and pending runs; failures with reasons and logs."""
    why = f"waits for a worker, such as `sweeper work results={ledger.results}`"
    for_workers = list_queued(ledger, Queue(ledger), "queued", why)
    queue = [*list_waiting_runs(ledger), *for_workers]
    queued = {line["run_id"] for line in queue if line["state"] in _IN_QUEUE}
    begun = [(run_id, n) for run_id, n in ledger.active() if run_id not in queued]
    running = [found for run_id, n in begun if (found := _running_attempt(ledger, run_id, n))]
    ended = _ended_rows(ledger, queued | {run["run_id"] for run in running})
    failed = [run_id for run_id, row in ended.items() if not row.outcome.is_result]
    reasons = ledger.rows(set(failed), ["outcome", "reason", "log_path", "config_json"])
    return {
        "results": str(ledger.results),
        "counts": dict(Counter(str(row.outcome) for row in ended.values())),
        "running": running,
        "waiting": queue,
        "pending": _pending_runs(ledger),
        "superseded": _count_superseded(ledger.results),
        "damaged": [str(path) for path in find_damaged(ledger.results)],
        "questions": [asdict(asked) for asked in read_questions(ledger.results)],
        "without_result": sorted(reasons.values(), key=lambda row: row["run_id"]),
    }


def _ended_rows(ledger: Ledger, under_way: Collection[str]) -> dict[str, RowFile]:
    """The rows of runs for which no other attempt is running or queued."""
    rows = sound_rows(ledger)
    return {run_id: row for run_id, row in rows.items() if run_id not in under_way}


def _count_superseded(results: Path) -> dict[str, int]:
    """The rows that are kept of earlier attempts and deleted runs, by outcome; from a listing."""
    runs = results / "superseded" / "runs"
    rows = list_row_files(runs) if runs.is_dir() else []
    return dict(Counter(str(row.outcome) for row in rows))


def _pending_runs(ledger: Ledger) -> list[str]:
    """The ids of runs that sweeps on any machine have yet to start."""
    begun = {run_id: row.attempt for run_id, row in ledger.ended().items()} | dict(ledger.active())
    rows = [row for listed in read_pending_runs(ledger.results) for row in listed.runs]
    return [row.run_id for row in rows if row.attempt > begun.get(row.run_id, 0)]


def _running_attempt(ledger: Ledger, run_id: str, number: int) -> dict[str, Any] | None:
    attempt = Attempt.load(ledger, run_id, number)
    state = attempt_state(ledger, run_id, number)
    if attempt is None or not isinstance(state, Open):
        return None
    curve, progress = attempt.curve(), read_step_progress(attempt.folder)
    return {
        "run_id": run_id,
        "attempt": number,
        "state": str(state),
        "point": attempt.spec.point,
        "epoch": curve[-1]["epoch"] if curve else 0,
        "epochs": attempt.spec.epochs,
        "progress": progress and progress.model_dump(),
        "metric": metric_columns(curve, attempt.spec.config)["metric"],
        "metric_name": attempt.spec.config.metric,
    }


def run_overview(ledger: Ledger, run_id: str) -> dict[str, Any]:
    """A run's config, its attempts with their ends, and the curve of the latest."""
    attempts: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    curve: list[dict[str, Any]] = []
    for number in range(1, ledger.last_attempt(run_id) + 1):
        attempt = Attempt.load(ledger, run_id, number)
        if attempt is None:
            continue
        config, curve = attempt.spec.config.resolved, attempt.curve()
        attempts.append(
            {
                "attempt": number,
                "started_at": attempt.started_at,
                "trunk": planned_columns(attempt.spec)["trunk"],
                "end": describe_state(attempt_state(ledger, run_id, number)),
                "epochs": curve[-1]["epoch"] if curve else 0,
                "log": str(attempt.folder / "log.txt"),
            }
        )
    return {"run_id": run_id, "config": config, "attempts": attempts, "curve": curve}


def describe_state(state: AttemptState) -> str:
    """How an attempt ended, or whether it is running or abandoned."""
    if state is Open.HELD:
        return "running"
    if state is Open.ABANDONED:
        return "abandoned: its launcher is gone; repeat the sweep"
    return f"{state.outcome}: {state.reason}"


def find_run(ledger: Ledger, prefix: str) -> str:
    """The run whose id starts like this; empty if none or several do."""
    folder = ledger.results / "attempts"
    found = {path.name for path in folder.glob(f"{prefix}*")} if prefix.isalnum() else set[str]()
    if not found and prefix.isalnum():
        queues = [Queue(ledger), *(layout.queue for layout in list_layouts(ledger))]
        known = (run_id for queue in queues for run_id in queue.list_runs())
        found = {run_id for run_id in known if run_id.startswith(prefix)}
    return found.pop() if len(found) == 1 else ""


def _show_overview(found: dict[str, Any], ledger: Ledger, console: Console, at_most: int) -> None:
    waiting_lines = found["waiting"]
    open_runs = [*found["running"], *(at for at in waiting_lines if at["state"] != "outdated")]
    lines = [line for run in open_runs[:at_most] if (line := _line_of_open(ledger, run))]
    in_queue = [line for line in waiting_lines if line["state"] in _IN_QUEUE]
    under_way = {line["run_id"] for line in (*found["running"], *in_queue)}
    ended = [*_ended_rows(ledger, under_way).values()]
    room = max(0, at_most - len(lines))
    shown = [*lines, *_ended_lines(ledger, ended, at_most=room)]
    if shown:
        differences = Differences(line.words for line in shown)
        console.print(runs_table(shown, differences, title="Runs", has_ids=True), soft_wrap=False)
    if (more := len(open_runs) + len(ended) - len(shown)) > 0:
        console.print(f"... and {several(more, 'run')} more: pandas.read_parquet lists all")
    for why, count in Counter(f"{line['state']}: {line['why']}" for line in waiting_lines).items():
        console.print(f"{count} {why}")
    for row in found["without_result"][: at_most // 3]:
        console.print(printable(f"{row['outcome']}: {row['run_id']} {row['reason']}"))
        log = ledger.results / (row["log_path"] or "")
        if log.is_file():  # a job that was cancelled while waiting has none
            console.print(printable(f"    log: {log}"))
    if (more := len(found["without_result"]) - at_most // 3) > 0:
        console.print(f"... and {more} more without a result; --json lists all")
    if stopped := sum(_may_resume(ledger, row) for row in found["without_result"]):
        console.print(f"Repeat the sweep to resume {several(stopped, 'preempted run')}.")
    if kept := found["superseded"]:
        words = describe_counts(kept)
        console.print(f"superseded/ keeps earlier attempts and deleted runs: {words}")
    for path in found["damaged"]:
        console.print(consequence(Path(path)))
    for asked in found["questions"]:
        console.print(f"question={asked['text']!r}: {asked['said']}")
    counts = describe_counts(found["counts"]) or "no run has finished yet"
    states = Counter(run["state"] for run in found["running"])
    left = f", {states[Open.ABANDONED]} abandoned" if states[Open.ABANDONED] else ""
    left += f", {len(found['pending'])} waiting" if found["pending"] else ""
    console.print(f"{counts}, {states[Open.HELD]} running{left}. Results: {ledger.results}")


def _line_of_open(ledger: Ledger, run: Mapping[str, Any]) -> RunLine | None:
    """The line of a run that is running or queued, as far as its latest attempt came."""
    attempt = Attempt.load(ledger, run["run_id"], run["attempt"])
    if not (attempt or "config" in run):  # removed just now
        return None
    spec = attempt.spec if attempt else read_run_spec(run["config"])
    state = RunState(spec, status=run["state"], attempt=attempt)
    state.read_progress()
    return state.line


def _may_resume(ledger: Ledger, row: Mapping[str, Any]) -> bool:
    """Whether an ended run is one that the sweep's command resumes, unlike a pruned trial."""
    folder = ledger.attempt_folder(row["run_id"], row["attempt"])
    return row["outcome"] == Outcome.PREEMPTED and not is_cancelled(folder)


def _ended_lines(ledger: Ledger, ended: Sequence[RowFile], *, at_most: int) -> list[RunLine]:
    """The runs whose rows were published last, in the order in which they started."""

    def published_at(row: RowFile) -> float:
        try:
            return (ledger.results / "runs" / row.name_in("runs")).stat().st_mtime
        except FileNotFoundError:  # merged, so it is not among the latest
            return 0.0

    by_time = sorted(ended, key=published_at)
    latest = by_time[max(0, len(by_time) - at_most) :]
    rows = ledger.rows({row.run_id for row in latest}, ROW_COLUMNS).values()
    return [line_of_row(row) for row in sorted(rows, key=lambda row: str(row["started_at"]))]


def _show_run(found: dict[str, Any], console: Console) -> None:
    console.print(f"run {found['run_id']}")
    typed = {key: found["config"][key] for key in found["config"] if key not in Facts.model_fields}
    console.print(json.dumps(typed, indent=1, sort_keys=True))
    for attempt in found["attempts"]:
        started = f"{attempt['started_at']:%Y-%m-%d %H:%M:%S} UTC"
        began = f", began on its trunk after {attempt['trunk']}" if attempt["trunk"] else ""
        console.print(f"attempt {attempt['attempt']}, started {started}{began}: {attempt['end']}")
        console.print(f"    log: {attempt['log']}")
    for row in found["curve"][-_CURVE_ROWS_SHOWN:]:
        values = {**row, **row.get("metrics", {}), "metrics": None}
        words = " ".join(
            f"{name}={value:.6g}"
            for name, value in values.items()
            # a task may have no accuracy
            if value is not None and not (name.endswith("accuracy") and isnan(value))
        )
        console.print(f"    {words}", highlight=False)


def add_names(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `find_named` reads."""
    parser.add_argument("what", nargs="?", help="results folder (results), or a run id")
    parser.add_argument("--results", default="results", help="folder to look for a run id in")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sweeper status", description=__doc__)
    add_names(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "-w", "--watch", action="store_true", help="refresh the display until all runs have ended"
    )
    return parser
