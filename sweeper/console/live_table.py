"""A sweep as it runs: a live table on a terminal, plain lines elsewhere, a summary at the end."""

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sweeper.console.runs_table import RunState, counted, duration, runs_table
from sweeper.planning.tasks import Event
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger

_REFRESH_S = 0.25
_LINE_EVERY_S = 5.0
_ROWS_SHOWN = 24
_ROWS_IN_SUMMARY = 60


class LiveTable:
    """The runs of a sweep as they change.

    Args:
        specs: every run of the grid.
        ledger: what is known of them.
        console: where to show.
    """

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
        """A run that was not in the grid from the start.

        Args:
            spec: the run.
            status: waiting, or the outcome that the ledger has of it.
        """
        if spec.run_id not in self._states:
            self._states[spec.run_id] = state = RunState(spec)
            state.status = status
            self._to_do += spec.most_epochs if status == "waiting" else 0

    def say(self, text: str) -> None:
        """A line of its own, above the table."""
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
        for end in event.ended:
            state = self._running.pop(end.run_id, self._states[end.run_id])
            state.read_progress()
            state.status, state.reason = end.outcome, end.reason
            self._done += state.spec.most_epochs
            self._latest = [state, *self._latest][:_ROWS_SHOWN]
            self._say_line(
                f"{end.outcome:<8} {state.spec.point}  {state.accuracy_text}  {end.reason}"
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
        return Group(runs_table(states, title=self._counts()), self._bar())

    def _bar(self) -> RenderableType:
        bar = Progress(
            TextColumn("epochs"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        bar.add_task("epochs", total=self._to_do, completed=self._epochs(), left=self._time_left())
        return bar

    def _epochs(self) -> int:
        return self._done + sum(state.epoch for state in self._running.values())

    def _time_left(self) -> str:
        done = self._epochs()
        if not done:
            return ""
        seconds = (time.monotonic() - self._started) / done * (self._to_do - done)
        return f"about {duration(seconds)} left"

    def _fill_in_from_ledger(self) -> None:
        """What earlier commands found out about runs that this one did not make."""
        missing = {run_id for run_id, state in self._states.items() if state.accuracy is None}
        columns = ["val_accuracy", "epochs_completed", "train_s"]
        for run_id, row in self._ledger.rows(missing, columns).items() if missing else ():
            state = self._states[run_id]
            state.accuracy, state.seconds = row["val_accuracy"], row["train_s"]
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
