"""Runs as a table in a terminal: live during a sweep, or once for the status command."""

import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from sweeper.console.text import text_table
from sweeper.planning.plan import Event
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger
from sweeper.store.row import metric_columns

_REFRESH_S = 1.0  # reads the progress of each running run
_LINE_EVERY_S = 5.0
_ROWS_SHOWN = 24
_ROWS_IN_SUMMARY = 60

LAYOUT = "layout: ranks x micro-batch x accumulation steps"
_COLUMNS = ("batch", "warmup", "rule", "seed", "layout", "state", "epoch")
_STYLE = {
    "waiting": "dim",
    "running": "cyan",
    "elsewhere": "cyan",
    "finished": "green",
    "diverged": "yellow",
}


@dataclass(slots=True)
class RunState:
    """What is known about one run.

    `status` is waiting, running, elsewhere, or an outcome; `metric` that after the latest
    epoch; `seconds` those of training and validation so far; `attempt` the latest one, if it
    was made now.
    """

    spec: RunSpec
    status: str = "waiting"
    epoch: int = 0
    metric: float | None = None
    seconds: float | None = None
    attempt: Attempt | None = None
    reason: str = ""

    def read_progress(self) -> None:
        """Look at what the attempt has left on disk so far."""
        if self.attempt and (curve := self.attempt.curve()):
            self.epoch = curve[-1]["epoch"]
            self.metric = metric_columns(curve, self.spec.config)["metric"]
            self.seconds = curve[-1]["elapsed_s"]

    @property
    def metric_text(self) -> str:
        """For a cell of the table."""
        return f"{self.metric:.4f}" if self.metric is not None and not isnan(self.metric) else ""


def runs_table(states: Iterable[RunState], *, title: str) -> Table:
    """One line per run."""
    states = list(states)
    names = {state.spec.config.metric.replace("val_accuracy", "val acc") for state in states}
    columns = (*_COLUMNS, names.pop() if len(names) == 1 else "metric", "s")
    table = text_table(*columns, title=title, title_justify="left", caption=LAYOUT, box=SIMPLE_HEAD)
    for state in states:
        config, split = state.spec.config, state.spec.split
        table.add_row(
            f"{config.batch:,}",
            f"{config.warmup:g}",
            config.lr_rule.name,
            str(config.seed),
            f"{split.world_size}x{split.micro_batch}x{split.accumulation_steps}",
            Text(str(state.status), style=_STYLE.get(str(state.status), "red")),
            f"{state.epoch}/{state.spec.most_epochs}" if state.epoch else "",
            state.metric_text,
            f"{state.seconds:.1f}" if state.seconds else "",
        )
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Counts as text: `3 finished, 1 running`."""
    return ", ".join(f"{number} {status}" for status, number in counts.items())


def duration(seconds: float) -> str:
    """Seconds for people: `1h 02m`, `3m 05s`, `12s`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"


class LiveTable:
    """The runs of a sweep as they change."""

    def __init__(self, specs: Sequence[RunSpec], ledger: Ledger, console: Console) -> None:
        self._states = {spec.run_id: RunState(spec) for spec in specs}
        self._ledger, self._console = ledger, console
        self._started = time.monotonic()
        self._shown_at = 0.0
        self._line_at = self._started
        self._running: dict[str, RunState] = {}
        self._latest: list[RunState] = []
        for run_id, row in ledger.ended().items():
            if run_id in self._states:
                self._states[run_id].status = row.outcome
        waiting = (state for state in self._states.values() if state.status == "waiting")
        self._to_do = sum(state.spec.most_epochs for state in waiting)
        self._done = 0
        self.live: Live | None = None

    @property
    def all_have_results(self) -> bool:
        """Whether every run of the grid is finished or diverged."""
        results = {Outcome.FINISHED, Outcome.DIVERGED}
        return all(state.status in results for state in self._states.values())

    def add(self, spec: RunSpec, status: str) -> None:
        """A run that was not in the grid: waiting, or with the ledger's outcome of it."""
        if spec.run_id not in self._states:
            self._states[spec.run_id] = state = RunState(spec)
            state.status = status
            self._to_do += spec.most_epochs if status == "waiting" else 0

    def say(self, text: str) -> None:
        """Print a separate line above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, event: Event) -> None:
        """Take in what happened; refresh the screen if it is time to."""
        for text in event.said:
            self.say(text)
        for run_id in event.queued:
            self._states[run_id].status = "queued"
        for attempt in event.began:
            self._note_start(attempt, "running", "start")
        for attempt in event.elsewhere:
            self._note_start(attempt, "elsewhere", "elsewhere")
        for run_id, end in event.ended.items():
            state = self._running.pop(run_id, self._states[run_id])
            state.read_progress()
            state.status, state.reason = end.outcome, end.reason
            self._done += state.spec.most_epochs
            self._latest = [state, *self._latest][:_ROWS_SHOWN]
            self._say_line(
                f"{end.outcome:<8} {state.spec.point}  {state.metric_text}  {end.reason}"
            )
        self._refresh()

    def print_summary(self) -> None:
        """Print the runs, which failed and why, and where the results are."""
        states = list(self._states.values())
        if len(states) <= _ROWS_IN_SUMMARY:
            self._fill_in_from_ledger()
            self._console.print(runs_table(states, title="Runs"))
        for state in states:
            if state.attempt and state.status == Outcome.FAILED:
                self.say(f"failed: {state.spec.point}: {state.reason}")
                self.say(f"        log: {state.attempt.folder / 'log.txt'}")
        seconds = duration(time.monotonic() - self._started)
        self.say(f"{self._counts()} in {seconds}. Results: {self._ledger.results}")

    def _note_start(self, attempt: Attempt, status: str, label: str) -> None:
        state = self._states[attempt.spec.run_id]
        if state.status not in {"waiting", "queued"} and state.spec.run_id not in self._running:
            self._to_do += state.spec.most_epochs  # a run tried again
        state.status, state.attempt, state.spec = status, attempt, attempt.spec
        self._running[state.spec.run_id] = state
        self._say_line(f"{label:<8} {attempt.spec.point}")

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._shown_at < _REFRESH_S:
            return
        self._shown_at = now
        for state in self._running.values():
            state.read_progress()
        if self.live:
            self.live.update(self._table(), refresh=True)
        elif now - self._line_at > _LINE_EVERY_S:
            self._line_at = now
            self._say_line(f"progress {self._epochs()}/{self._to_do} epochs; {self._counts()}")

    def _say_line(self, text: str) -> None:
        if not self.live:
            self.say(text)

    def _counts(self) -> str:
        return counted(Counter(str(state.status) for state in self._states.values()))

    def _table(self) -> RenderableType:
        states = list(self._states.values())
        if len(states) > _ROWS_SHOWN:
            states = [*self._running.values(), *self._latest][:_ROWS_SHOWN]
        bar = Progress(
            TextColumn("epochs"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        bar.add_task("epochs", total=self._to_do, completed=self._epochs(), left=self._time_left())
        return Group(runs_table(states, title=self._counts()), bar)

    def _epochs(self) -> int:
        return self._done + sum(state.epoch for state in self._running.values())

    def _time_left(self) -> str:
        done = self._epochs()
        if not done:
            return ""
        seconds = (time.monotonic() - self._started) / done * (self._to_do - done)
        return f"about {duration(seconds)} left"

    def _fill_in_from_ledger(self) -> None:
        """Outcomes of runs that earlier commands executed."""
        missing = {run_id for run_id, state in self._states.items() if state.metric is None}
        names = {self._states[run_id].spec.config.metric for run_id in missing}
        columns = [*names, "epochs_completed", "train_s"]
        for run_id, row in self._ledger.measured(missing, columns).items() if missing else ():
            state = self._states[run_id]
            state.metric = row[state.spec.config.metric]
            state.seconds = row["train_s"]
            state.epoch = row["epochs_completed"] or 0


@contextmanager
def live_table(specs: Sequence[RunSpec], ledger: Ledger) -> Generator[LiveTable]:
    """The table of a sweep, which follows its runs on a terminal; a summary at the end."""
    console = Console()
    table = LiveTable(specs, ledger, console)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            table.live = live
            yield table
        table.live = None
    else:
        yield table
    table.print_summary()
