"""Runs as a table of text: during a sweep, at its end, and for the status command."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from sweeper.console.differences import Differences
from sweeper.console.fitted_table import Column, FittedTable
from sweeper.spec.identity import Words, with_spans, words
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import read_run_spec
from sweeper.spec.sentences import printable
from sweeper.store.run_columns import metric_text

LAYOUT = "ranks x micro-batch x accumulation steps"
_REAL = re.compile(r"-?\d+\.\d+(e-?\d+)?")
_LONGEST_NUMBER = 10  # of a number that is written in full [digits]
_STYLE = {
    "waiting": "dim",
    "not started": "dim",
    "running": "cyan",
    "elsewhere": "cyan",
    "finished": "green",
    "diverged": "yellow",
}
_WITHOUT_RESULT = {"stopped", *(outcome for outcome in Outcome if not outcome.is_result)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run as a line of the table: its settings, layout and progress.

    `step`, `rate` and `left` are filled in only while a run trains.
    """

    words: Words
    layout: str
    status: str
    epoch: str
    metric_name: str
    metric: float | None
    seconds: float | None
    step: str = ""
    rate: str = ""
    left: str = ""
    run_id: str = ""
    tokens: tuple[int, int] = (0, 0)  # of a step and of the run, where batches are in sequences

    @property
    def progress(self) -> str:
        """How far it is and how fast, in words: `epoch=1/30 step=4/16 examples/s=45,210`."""
        heads = {"epoch": self.epoch, "step": self.step}
        heads |= {"examples/s": self.rate, "left": self.left}
        return " ".join(f"{head}={text}" for head, text in heads.items() if text)

    @property
    def may_count(self) -> bool:
        """Whether it has a result, or may come to have one: the metric of no other is one."""
        return self.status not in _WITHOUT_RESULT

    @property
    def metric_text(self) -> str:
        """The metric for a cell of the table; empty if it was not measured."""
        return metric_text(self.metric_name, self.metric)


LAYOUT_COLUMNS = ("world_size", "micro_batch", "accumulation_steps")
#: Columns of the runs table that `line_of_row` reads.
ROW_COLUMNS = (
    "outcome", "config_json", *LAYOUT_COLUMNS,
    "epochs", "epochs_completed", "steps", "metric_name", "metric", "train_s", "started_at",
    "tokens_per_example",
)  # fmt: skip


def line_of_row(row: Mapping[str, Any]) -> RunLine:
    """The line of an ended run, from its row; nothing that its config names is imported."""
    words, tokens = _read_config(row)
    done, planned = row["epochs_completed"], row["epochs"]
    steps = _planned_steps(words)
    layout = (row[name] or "?" for name in LAYOUT_COLUMNS)
    return RunLine(
        words=words,
        layout="x".join(map(str, layout)),
        status=printable(str(row["outcome"])),
        epoch=f"{done}/{planned}" if done and not steps else "",
        step=f"{row['steps']}/{steps}" if row["steps"] and steps else "",
        metric_name=printable(row["metric_name"] or "metric"),
        metric=row["metric"],
        seconds=row["train_s"],
        run_id=row["run_id"],
        tokens=tokens,
    )


def _read_config(row: Mapping[str, Any]) -> tuple[Words, tuple[int, int]]:
    """The words of a row's run, and its tokens."""
    try:
        config = json.loads(row["config_json"])
        found = words(with_spans(config, row["micro_batch"], row["world_size"]))
        return found, read_run_spec(config).tokens if row["tokens_per_example"] else (0, 0)
    except (ValueError, TypeError, KeyError, AttributeError):  # no config of ours
        return {}, (0, 0)


def _planned_steps(words: Words) -> int | None:
    """Length of a run in steps or examples [steps]; None of one in epochs."""
    steps, examples, batch = (
        int(words[key][0]) if words.get(key, ("null",))[0].isdecimal() else None
        for key in ("steps", "examples", "batch")
    )
    return examples // batch if examples and batch else steps


def runs_table(
    lines: Sequence[RunLine], differences: Differences, *, title: str, has_ids: bool = False
) -> Group:
    """One line per run, under a heading with what all runs have in common."""
    layouts = {line.layout for line in lines}
    names = {line.metric_name for line in lines}
    metric = names.pop() if len(names) == 1 else "metric"
    statuses = [line.status for line in lines]
    seconds = [f"{line.seconds:.1f}" if line.seconds else "" for line in lines]
    columns = [
        *difference_columns([line.words for line in lines], differences),
        *layout_column([line.layout for line in lines]),
        *token_columns([line.tokens for line in lines]),
        Column(head="state", cells=statuses, styles=[_STYLE.get(s, "red") for s in statuses]),
        Column(head="epoch", cells=[line.epoch for line in lines], spared=5),
        Column(head="step", cells=[line.step for line in lines], spared=4),
        Column(head=metric, cells=[line.metric_text * line.may_count for line in lines]),
        Column(head="s", cells=seconds, spared=1),
        Column(head="examples/s", cells=[line.rate for line in lines], spared=2),
        Column(head="left", cells=[line.left for line in lines], spared=3),
        Column(head="run", cells=[line.run_id * has_ids for line in lines], spared=6),
    ]
    text = f"{title}\n{describe_common(differences, layouts)}"
    heading = Text(text, style="italic", no_wrap=False, overflow="fold")  # a live table cuts lines
    return Group(heading, FittedTable(columns))


def difference_columns(runs: Sequence[Words], differences: Differences) -> list[Column]:
    """A column for each key in which runs differ."""
    values = {key: [run[key][0] if key in run else "" for run in runs] for key in differences.keys}
    return [Column(head=key, cells=_cells(key, found)) for key, found in values.items()]


def _cells(key: str, values: Sequence[str]) -> Sequence[str]:
    """The values of a key; long numbers, as samplers draw, are shortened if they stay distinct."""
    if key == "batch":
        return [f"{int(value):,}" if value.isdecimal() else value for value in values]
    long = {value for value in values if len(value) > _LONGEST_NUMBER and _REAL.fullmatch(value)}
    short = [f"{float(value):.6g}" if value in long else value for value in values]
    return short if len(set(short)) == len(set(values)) else values


def layout_column(layouts: Sequence[str]) -> list[Column]:
    """The column of layouts, if they differ."""
    is_shown = len(set(layouts)) > 1
    return [Column(head="layout", cells=layouts, spared=2)] if is_shown else []


def token_columns(counts: Sequence[tuple[int, int]]) -> list[Column]:
    """The columns of the tokens in a step and in a run; none of other data than texts."""
    heads = ("tokens/step", "tokens")
    cells = [[f"{number:,}" for number in column] for column in zip(*counts, strict=True)]
    columns = [Column(head=head, cells=c, spared=2) for head, c in zip(heads, cells, strict=True)]
    return columns if any(number for pair in counts for number in pair) else []


def describe_common(differences: Differences, layouts: Collection[str]) -> str:
    """A line with what all runs have in common, which also explains layouts."""
    (layout,) = layouts if len(layouts) == 1 else ("",)
    words = f"{differences.common()} layout={layout}".removesuffix(" layout=").strip()
    whose = "All runs" if differences.keys else "The run"
    return f"{whose}: {words} ({LAYOUT})" if layout else f"{whose}: {words}; layout: {LAYOUT}"


def rate_text(examples_per_s: float) -> str:
    """Examples per second as text, in three digits or more: `12,345`, `0.0123`."""
    return f"{examples_per_s:,.0f}" if examples_per_s >= 100 else f"{examples_per_s:.3g}"


def describe_counts(counts: Mapping[str, int]) -> str:
    """Counts as text: `3 finished, 1 running`."""
    return ", ".join(f"{number} {status}" for status, number in counts.items())


def duration(seconds: float) -> str:
    """A duration as text: `1h 02m`, `3m 05s`, `12s`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
