"""Runs as a table on a terminal, for the sweep and for the status command."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt

LAYOUT = "layout: ranks x micro-batch x accumulation steps"
_COLUMNS = ("batch", "warmup", "rule", "seed", "layout", "state", "epoch", "val acc", "s")
_STYLE = {
    "waiting": "dim",
    "running": "cyan",
    "elsewhere": "cyan",
    "finished": "green",
    "diverged": "yellow",
}


@dataclass(slots=True)
class RunState:
    """What is known of one run.

    Attributes:
        spec: the run.
        status: waiting, running, elsewhere, or an outcome.
        epoch: epochs completed.
        accuracy: on the validation set after the latest epoch.
        seconds: of training and validation so far.
        attempt: the latest one, if it was made now.
        reason: why it ended.
    """

    spec: RunSpec
    status: str = "waiting"
    epoch: int = 0
    accuracy: float | None = None
    seconds: float | None = None
    attempt: Attempt | None = None
    reason: str = ""

    def read_progress(self) -> None:
        """Look at what the attempt has left on disk so far."""
        if self.attempt and (curve := self.attempt.curve()):
            self.epoch = curve[-1]["epoch"]
            self.accuracy = curve[-1]["val_accuracy"]
            self.seconds = curve[-1]["elapsed_s"]

    @property
    def accuracy_text(self) -> str:
        """For a cell of the table."""
        return f"{self.accuracy:.4f}" if self.accuracy is not None else ""


def runs_table(states: Iterable[RunState], *, title: str) -> Table:
    """One line per run."""
    table = Table(title=title, title_justify="left", caption=LAYOUT, box=SIMPLE_HEAD)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for state in states:
        config, split = state.spec.config, state.spec.split
        table.add_row(
            f"{config['batch']:,}",
            f"{config['warmup']:g}",
            config["lr_rule"]["name"],
            str(config["seed"]),
            f"{split.world_size}x{split.micro_batch}x{split.accumulation_steps}",
            Text(str(state.status), style=_STYLE.get(str(state.status), "red")),
            f"{state.epoch}/{state.spec.most_epochs}" if state.epoch else "",
            state.accuracy_text,
            f"{state.seconds:.1f}" if state.seconds else "",
        )
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Counts in words: `3 finished, 1 running`."""
    return ", ".join(f"{number} {status}" for status, number in counts.items())


def duration(seconds: float) -> str:
    """Seconds for people: `1h 02m`, `3m 05s`, `12s`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
