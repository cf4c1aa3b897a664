"""A sweep as it runs: a live table on a terminal, plain lines elsewhere, a summary at the end."""

import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from sweeper.attempt import Attempt
from sweeper.domain.outcomes import Outcome
from sweeper.domain.run_spec import RunSpec
from sweeper.ledger import Ended, Ledger

_REFRESH_S = 0.25
_LINE_EVERY_S = 5.0
_ROWS_SHOWN = 24
_LAYOUT = "layout: ranks x micro-batch x accumulation steps"
_STYLE = {
    "waiting": "dim",
    "running": "cyan",
    "finished": "green",
    "diverged": "yellow",
}


@dataclass(slots=True)
class _State:
    """What is known of one run."""

    spec: RunSpec
    status: str = "waiting"
    epoch: int = 0
    accuracy: float | None = None
    seconds: float | None = None
    attempt: Attempt | None = None
    reason: str = ""


class View:
    """Follows a sweep's runs and shows them.

    Args:
        specs: every run of the grid.
        ended: what the ledger had before.
        ledger: for the path named at the end.
        console: where to show.
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        ended: Mapping[str, Ended],
        ledger: Ledger,
        console: Console,
    ) -> None:
        self._states = {spec.run_id: _State(spec) for spec in specs}
        for run_id, row in ended.items():
            if row.outcome.is_result:
                self._states[run_id].status = row.outcome
                self._states[run_id].reason = "already in the ledger"
        self._skipped = sum(state.reason != "" for state in self._states.values())
        self._ledger, self._console = ledger, console
        self._started = time.monotonic()
        self._shown_at = 0.0
        self._line_at = self._started
        self.live: Live | None = None

    def say(self, text: str) -> None:
        """A line of its own, above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def began(self, attempt: Attempt) -> None:
        """An attempt started."""
        state = self._states[attempt.spec.run_id]
        state.status, state.attempt = "running", attempt
        self._line(f"start    {attempt.spec.point}")

    def ended(self, attempt: Attempt, outcome: Outcome, reason: str) -> None:
        """An attempt ended."""
        state = self._states[attempt.spec.run_id]
        self._read_progress(state)
        state.status, state.reason = outcome, reason
        self._line(f"{outcome:<8} {attempt.spec.point}  {_accuracy(state)}  {reason}")

    def refresh(self) -> None:
        """Show the state of things, if it is time to."""
        now = time.monotonic()
        if now - self._shown_at < _REFRESH_S:
            return
        self._shown_at = now
        for state in self._states.values():
            if state.status == "running":
                self._read_progress(state)
        if self.live:
            self.live.update(self._table())
        elif now - self._line_at > _LINE_EVERY_S:
            self._line_at = now
            self._line(self._progress_line())

    def outcomes(self) -> Counter[Outcome]:
        """How many runs ended how; runs that never started count as failed."""
        return Counter(
            Outcome(s.status) if s.status in set(Outcome) else Outcome.FAILED
            for s in self._states.values()
        )

    def summary(self) -> None:
        """The table of all runs, and where the results are."""
        self._console.print(self._runs_table(list(self._states.values()), title="Runs"))
        for state in self._states.values():
            if state.attempt and state.status == Outcome.FAILED:
                self.say(f"failed: {state.spec.point}: {state.reason}")
                self.say(f"        log: {state.attempt.folder / 'log.txt'}")
        counts = ", ".join(f"{n} {status}" for status, n in self._counts().items())
        seconds = time.monotonic() - self._started
        self.say(f"{counts} in {_duration(seconds)}. Results: {self._ledger.results}")

    def _line(self, text: str) -> None:
        if not self.live:
            self.say(text)

    def _read_progress(self, state: _State) -> None:
        if state.attempt and (curve := state.attempt.curve()):
            state.epoch = curve[-1]["epoch"]
            state.accuracy = curve[-1]["val_accuracy"]
            state.seconds = curve[-1]["elapsed_s"]

    def _counts(self) -> dict[str, int]:
        return dict(Counter(str(state.status) for state in self._states.values()))

    def _table(self) -> RenderableType:
        states = list(self._states.values())
        shown = states if len(states) <= _ROWS_SHOWN else self._most_interesting(states)
        title = ", ".join(f"{n} {status}" for status, n in self._counts().items())
        return Group(self._runs_table(shown, title=title), self._bar())

    def _most_interesting(self, states: Sequence[_State]) -> list[_State]:
        running = [s for s in states if s.status == "running"]
        ended = [s for s in states if s.status in set(Outcome) and s.attempt]
        return (running + ended[::-1])[:_ROWS_SHOWN]

    def _runs_table(self, states: Sequence[_State], *, title: str) -> Table:
        table = Table(title=title, title_justify="left", caption=_LAYOUT, box=SIMPLE_HEAD)
        for name in ("batch", "warmup", "rule", "seed", "layout", "state", "epoch", "val acc", "s"):
            table.add_column(name, justify="right", no_wrap=True)
        for state in states:
            config, split = state.spec.config, state.spec.split
            layout = f"{split.world_size}x{split.micro_batch}x{split.accumulation_steps}"
            table.add_row(
                f"{config['batch']:,}",
                f"{config['warmup']:g}",
                config["lr_rule"]["name"],
                str(config["seed"]),
                layout,
                Text(str(state.status), style=_STYLE.get(str(state.status), "red")),
                f"{state.epoch}/{state.spec.epochs}" if state.attempt else "",
                _accuracy(state),
                f"{state.seconds:.1f}" if state.seconds else "",
            )
        return table

    def _bar(self) -> RenderableType:
        bar = Progress(
            TextColumn("epochs"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        done, total = self._epochs()
        bar.add_task("epochs", total=total, completed=done, left=self._time_left())
        return bar

    def _epochs(self) -> tuple[int, int]:
        mine = [s for s in self._states.values() if s.reason != "already in the ledger"]
        done = sum(s.spec.epochs if s.status in set(Outcome) else s.epoch for s in mine)
        return done, sum(s.spec.epochs for s in mine)

    def _time_left(self) -> str:
        done, total = self._epochs()
        if not done:
            return ""
        seconds = (time.monotonic() - self._started) / done * (total - done)
        return f"about {_duration(seconds)} left"

    def _progress_line(self) -> str:
        done, total = self._epochs()
        counts = ", ".join(f"{n} {status}" for status, n in self._counts().items())
        return f"progress {done}/{total} epochs; {counts}; {self._time_left()}"


@contextmanager
def view(specs: Sequence[RunSpec], ended: Mapping[str, Ended], ledger: Ledger) -> Generator[View]:
    """A view of a sweep: live on a terminal; the summary is shown at the end."""
    console = Console()
    shown = View(specs, ended, ledger, console)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            shown.live = live
            yield shown
        shown.live = None
    else:
        yield shown
    shown.summary()


def _accuracy(state: _State) -> str:
    return f"{state.accuracy:.4f}" if state.accuracy is not None else ""


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
