"""Questions about a run that only its code can answer, asked in a process with torch.

That process starts from the fork server, which the runs reuse. It writes a line of JSON for each
config to one file, and all that it prints to another.
"""

import json
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sweeper.launch.fork_server import start_process
from sweeper.launch.kernel_memory import oom_kills, out_of_memory

Question = Literal["blocks", "facts", "first steps", "memory", "sharpness"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What such a process answered.

    Attributes:
        values: plain values, one for each config, up to the first that it failed for.
        last_line: the last line that it printed, or the signal that killed it.
        is_timed_out: whether it was stopped because it took too long.
    """

    values: Sequence[Any]
    last_line: str
    is_timed_out: bool


def ask_process(
    question: Question,
    configs: Sequence[Mapping[str, Any]],
    *,
    longest_s: float | None = None,
) -> Answers:
    """Ask a question about each of these resolved configs, in a process of its own.

    Args:
        question: what to find out.
        configs: resolved.
        longest_s: the process is stopped after this time; None never stops it [seconds].

    Raises:
        ForkServerDied: if the process cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder:
        answers, output = Path(folder, "answers.jsonl"), Path(folder, "output.txt")
        answers.touch()
        output.touch()
        kills = oom_kills()
        process = start_process(_answer, (question, configs, answers, output))
        try:
            process.join(longest_s)
            code = process.exitcode
        finally:
            process.kill()
        lines = output.read_text(errors="replace").strip().splitlines() or ["no message"]
        if code is not None and code < 0:
            why = f" ({out_of_memory()})" * (oom_kills() > kills)
            lines.append(f"killed by {signal.Signals(-code).name}{why}")
        return Answers(
            values=[json.loads(line) for line in answers.read_text().splitlines()],
            last_line=lines[-1],
            is_timed_out=code is None,
        )


def _answer(args: tuple[Question, Sequence[Mapping[str, Any]], Path, Path]) -> None:
    """The entry point of that process."""
    try:
        from lightning_modules.answer_process import answer_question  # imports torch
    except Exception as error:
        args[-1].write_text(f"{type(error).__name__}: {error}")  # an import failed
        raise
    answer_question(*args)
