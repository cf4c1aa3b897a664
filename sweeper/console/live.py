"""The table of a sweep: live on a terminal, lines of text in a file, and a summary at the end."""

import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sweeper.console.differences import Differences
from sweeper.console.printing import text_console
from sweeper.console.runs import (
    LAYOUT_COLUMNS,
    RunLine,
    describe_counts,
    duration,
    rate_text,
    runs_table,
)
from sweeper.launch.local.interrupts import defer_signals
from sweeper.planning.plan import Event
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import printable
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger
from sweeper.store.run_columns import metric_columns
from sweeper.store.step_progress import StepProgress, read_step_progress

_REFRESH_S = 1.0  # also how often progress files are read
_LINE_EVERY_S = 5.0  # in a file; less often in a long sweep
_LINES_OF_ALL, _LONGEST_BETWEEN_LINES_S = 20, 600.0
_RUNS_IN_LINES = 4
_ROWS_SHOWN, _ROWS_IN_SUMMARY = 24, 60


@dataclass(slots=True)
class RunState:
    """What is known about a run."""

    spec: RunSpec
    status: str = "waiting"  # or queued, running, elsewhere, or an outcome
    epoch: int = 0
    step: int = 0  # of the run
    metric: float | None = None  # after the latest epoch
    seconds: float | None = None  # of training and validation so far
    attempt: Attempt | None = None  # the latest that this command has seen
    progress: StepProgress | None = None  # of that attempt, within an epoch
    reason: str = ""
    layout: str = ""  # of a run that an earlier command trained

    def read_progress(self) -> None:
        """Read what the attempt has written to disk so far."""
        if self.attempt and (curve := self.attempt.curve()):
            self.epoch, self.step = curve[-1]["epoch"], curve[-1]["step"]
            self.metric = metric_columns(curve, self.spec.config)["metric"]
            self.seconds = curve[-1]["elapsed_s"]
        if self.attempt:
            self.progress = read_step_progress(self.attempt.folder) or self.progress

    @property
    def unit(self) -> str:
        """What its length is measured in: epochs, or examples if it is given in those or steps."""
        return "examples" if self.spec.config.epochs is None else "epochs"

    @property
    def length(self) -> int:
        """The most that it trains [its unit]."""
        spec = self.spec
        if self.unit == "epochs":
            return spec.most_epochs
        return spec.batch_plan.examples_before(spec.epochs)

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the run so far [steps]."""
        now = self.progress
        return max(
            self.step, self.spec.batch_plan.steps_before(now.epoch - 1) + now.step if now else 0
        )

    @property
    def done(self) -> float:
        """What it has trained, including a part of the current epoch [its unit]."""
        if self.unit == "examples":
            plan = self.spec.batch_plan
            return plan.examples_before(*plan.place(self.steps_done))
        return max(self.epoch, self.progress.epochs_done if self.progress else 0)

    @property
    def resumed_at(self) -> float:
        """Position in training at which the latest attempt began [its unit]."""
        at = self.progress.resumed_at if self.progress else 0
        per_epoch = self.spec.steps_per_epoch * self.spec.config.batch
        return at * per_epoch if self.unit == "examples" else at

    @property
    def left(self) -> tuple[float, float] | None:
        """What remains to train; None if nothing does or it is not known [seconds, its unit]."""
        more = self.length - self.done
        seconds = self.progress.left_s if self.progress else None
        return None if seconds is None or more <= 0 else (seconds, more)

    @property
    def line(self) -> RunLine:
        """The run as a line of the table."""
        now = self.progress if self.status in {"running", "elsewhere"} else None
        epoch = f"{self.epoch}/{self.spec.most_epochs}" if self.epoch or now else ""
        step = f"{now.step}/{now.steps}" if now and now.epoch > self.epoch else ""
        if self.unit == "examples":
            is_begun, epoch = self.step or now, ""
            step = f"{self.steps_done}/{self.spec.total_steps}" if is_begun else ""
        if now and (now.first_step_s or 0.0) >= 1:
            step += f" ({duration(now.first_step_s or 0.0)})"
        return RunLine(
            words=self.spec.words,
            layout=self.layout or self.spec.split.layout,
            status=str(self.status),
            epoch=epoch,
            metric_name=self.spec.config.metric,
            metric=self.metric,
            seconds=self.seconds,
            step=step,
            rate=rate_text(now.examples_per_s) if now and now.examples_per_s else "",
            left=duration(now.left_s) if now and now.left_s is not None else "",
            run_id=self.spec.run_id,
            tokens=self.spec.tokens,
        )


class LiveTable:
    """The table of a sweep's runs, updated as they change."""

    def __init__(
        self, specs: Sequence[RunSpec], ledger: Ledger, console: Console, keys: Iterable[str]
    ) -> None:
        self._states = {spec.run_id: RunState(spec) for spec in specs}
        self._differences = Differences((spec.words for spec in specs), always=keys)
        self._ledger, self._console, self._last_line = ledger, console, ""
        self._started = self._line_at = time.monotonic()
        self._running: dict[str, RunState] = {}
        self._latest: list[RunState] = []
        for run_id, row in ledger.ended().items():
            if run_id in self._states:
                self._states[run_id].status = row.outcome
        states = self._states.values()
        self._to_do = sum(state.length for state in states if state.status == "waiting")
        self._done = self._made = self._shown_at = 0.0
        self.live: Live | None = None

    @property
    def all_have_results(self) -> bool:
        """Whether every run of the grid is finished or diverged."""
        results = {Outcome.FINISHED, Outcome.DIVERGED}
        return all(state.status in results for state in self._states.values())

    def add(self, spec: RunSpec, status: str) -> None:
        """Add a run that is not in the table yet: waiting, or with its outcome in the ledger."""
        if spec.run_id not in self._states:
            state = self._states[spec.run_id] = RunState(spec, status)
            self._differences.add(spec.words)
            self._to_do += state.length if status == "waiting" else 0

    def say(self, text: str) -> None:
        """Print a separate line above the table."""
        lines = "\n".join(map(printable, text.splitlines()))
        self._console.print(lines, highlight=False, markup=False, soft_wrap=True)

    def update(self, event: Event) -> None:
        """Apply an event, and refresh the screen if that is due."""
        for text in event.said:
            self.say(text)
        for run_id in event.queued:
            self._count_if_again(self._states[run_id])
            self._states[run_id].status = "queued"
        for attempt in event.began:
            self._start(attempt, "running", "start")
        for attempt in event.elsewhere:
            self._start(attempt, "elsewhere", "elsewhere")
        for run_id, end in event.ended.items():
            state = self._running.pop(run_id, self._states[run_id])
            state.read_progress()
            state.status, state.reason = end.outcome, end.reason
            self._done += state.length
            self._made += state.length - state.resumed_at
            self._latest = [state, *self._latest][:_ROWS_SHOWN]
            name = f"{end.outcome:<8} {self._name(state.spec)}"
            line = state.line
            metric = line.metric_text and f"{line.metric_name}={line.metric_text}"
            parts = (name, metric, end.reason)
            self._say_line("  ".join(part for part in parts if part))
        self._refresh()

    def print_summary(self) -> None:
        """Print the runs, which failed and why, and where the results are."""
        for state in (states := list(self._states.values())):
            is_ours = state.attempt is not None and state.attempt.is_ours  # with a full disk
            at_end = {"waiting": "not started"} | ({"running": "stopped"} if is_ours else {})
            state.status = at_end.get(state.status, state.status)
        if 0 < len(states) <= _ROWS_IN_SUMMARY:
            self._fill_in_from_ledger()
            lines = [state.line for state in states]
            table = runs_table(lines, self._differences, title="Runs")
            self._console.print(table, soft_wrap=False)
        for state in states:
            if state.attempt and state.status == Outcome.FAILED:
                reason = f": {state.reason}" if self._console.is_terminal else ""  # was said then
                self.say(f"failed: {self._name(state.spec)}{reason}")
                self.say(f"        log: {state.attempt.folder / 'log.txt'}")
        seconds = duration(time.monotonic() - self._started)
        self.say(f"{self._counts() or 'no new runs'} in {seconds}. Results: {self._ledger.results}")

    def _start(self, attempt: Attempt, status: str, label: str) -> None:
        state = self._states[attempt.spec.run_id]
        self._count_if_again(state)
        state.status, state.attempt, state.spec = status, attempt, attempt.spec
        state.progress = None
        self._running[state.spec.run_id] = state
        self._say_line(f"{label:<8} {self._name(attempt.spec)}  {attempt.resumes}".rstrip())

    def _count_if_again(self, state: RunState) -> None:
        if state.status not in {"waiting", "queued"} and state.spec.run_id not in self._running:
            self._to_do += state.length  # it had ended before

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._shown_at < _REFRESH_S:
            return
        self._shown_at = now
        for state in self._running.values():
            state.read_progress()
        if self.live:
            self.live.update(self._table(), refresh=True)
        elif now - self._line_at > self._line_every_s(now):
            self._line_at = now
            self._say_progress()

    def _line_every_s(self, now: float) -> float:
        """Time between lines in a file, so that a sweep of days prints some hundreds [seconds]."""
        of_all = (now - self._started) / _LINES_OF_ALL
        return max(_LINE_EVERY_S, min(of_all, _LONGEST_BETWEEN_LINES_S))

    def _say_progress(self) -> None:
        """Print the progress of the sweep and of its first running runs, if it has changed."""
        done = f"{int(self._trained()):,}/{self._to_do:,} {self._unit}"
        all_of_it = f"progress {done}; {self._counts()}"
        shown = list(self._running.values())[:_RUNS_IN_LINES]
        news = " ".join([all_of_it, *(f"{state.done}" for state in shown)])
        if news != self._last_line:
            self._last_line = news
            self.say("; ".join(filter(None, [all_of_it, self._time_left()])))
            for state in shown:
                if words := state.line.progress:
                    self.say(f"{'':<8} {self._name(state.spec)}  {words}")

    def _say_line(self, text: str) -> None:
        if not self.live:
            self.say(text)

    def _counts(self) -> str:
        return describe_counts(Counter(str(state.status) for state in self._states.values()))

    def _table(self) -> RenderableType:
        states = list(self._states.values())
        if len(states) > _ROWS_SHOWN:
            states = [*self._running.values(), *self._latest][:_ROWS_SHOWN]
        bar = Progress(
            TextColumn(self._unit),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        task = bar.add_task(self._unit, total=self._to_do, left=self._time_left())
        bar.update(task, completed=self._trained())
        lines = [state.line for state in states]
        return Group(runs_table(lines, self._differences, title=self._counts()), bar)

    def _name(self, spec: RunSpec) -> str:
        """A name for a run that distinguishes it from the others of the sweep."""
        return self._differences.label(spec.words) or spec.point

    @property
    def _unit(self) -> str:
        """That of the runs, which one command gives the same kind of length."""
        return next((state.unit for state in self._states.values()), "epochs")

    def _trained(self) -> float:
        return self._done + sum(state.done for state in self._running.values())

    def _time_left(self) -> str:
        """Time left: by the runs' reports if none waits or none ended, else by the speed so far."""
        running, left = self._running.values(), self._to_do - self._trained()
        known = [state.left for state in running if state.left]
        waiting = {"waiting", "queued"} & {state.status for state in self._states.values()}
        if known and len(known) == len(running) and not waiting:
            seconds = max(seconds for seconds, _ in known)
        elif self._made:
            made = self._made + sum(state.done - state.resumed_at for state in running)
            seconds = (time.monotonic() - self._started) / made * left
        elif known:
            seconds = fmean(seconds / more for seconds, more in known) * left / len(running)
        else:
            return ""
        return f"about {duration(seconds)} left"

    def _fill_in_from_ledger(self) -> None:
        """Fill in the metrics, times and lengths of runs that earlier commands executed."""
        missing = {run_id for run_id, state in self._states.items() if state.metric is None}
        names = {self._states[run_id].spec.config.metric for run_id in missing}
        columns = [*names, "epochs_completed", "steps", "train_s", *LAYOUT_COLUMNS]
        for run_id, row in self._ledger.measured(missing, columns).items() if missing else ():
            state = self._states[run_id]
            state.metric, state.seconds = row[state.spec.config.metric], row["train_s"]
            state.epoch, state.step = row["epochs_completed"] or 0, row["steps"] or 0
            state.layout = "x".join(str(row[name] or "?") for name in LAYOUT_COLUMNS)


@contextmanager
def live_table(
    specs: Sequence[RunSpec], ledger: Ledger, keys: Iterable[str] = ()
) -> Generator[LiveTable]:
    """The table of a sweep: live on a terminal during the block, with a summary at its end.

    `keys` are those in which runs that are added later may differ.
    """
    console = text_console()
    table = LiveTable(specs, ledger, console, keys)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            table.live = live
            table.update(Event())  # at once: runs take seconds to start
            yield table
        table.live = None
    else:
        yield table
    with defer_signals():  # an impatient Ctrl-C must not cut the table
        table.print_summary()
