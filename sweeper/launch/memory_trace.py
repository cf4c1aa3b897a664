"""Memory traces: the memory of runs, predicted in a separate process without training them."""

import tempfile
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from sweeper.launch.fork_server import ForkServerDied, start_process
from sweeper.spec.memory_classes import MemoryTrace
from sweeper.spec.run_spec import RunSpec
from sweeper.store.memory_cache import MemoryCache

#: With fake tensors a trace takes seconds; a module that does not support them trains a few steps.
LONGEST_S = 600.0


def trace_memory(
    spec: RunSpec,
    memory: MemoryCache,
    context: ForkServerContext,
    *,
    longest_s: float = LONGEST_S,
) -> str:
    """Trace the memory of this kind of run and store it; a sentence if that fails, else empty.

    A trace that was given up before LONGEST_S is not stored, so that it can be repeated.
    """
    try:
        trace = _traced(spec.config.resolved, context, longest_s)
    except ForkServerDied as error:
        return str(error)
    if trace is None and longest_s < LONGEST_S:
        given_up = f"The memory trace of {spec.point} was stopped after {longest_s:g} s"
        return f"{given_up}; `sweeper plan --memory` allows more."
    trace = trace or MemoryTrace(why_not=f"its trace took more than {longest_s:g} s")
    memory.record_trace(spec, trace)
    if not trace.why_not:
        return ""
    return (
        f"The memory of {spec.point} cannot be predicted: {trace.why_not}. Only micro_batch_limit "
        "applies."
    )


def _traced(
    config: Mapping[str, Any], context: ForkServerContext, longest_s: float
) -> MemoryTrace | None:
    """The trace from a separate process; None if it takes longer than allowed."""
    with tempfile.TemporaryDirectory() as folder:
        answer, said = Path(folder, "trace.json"), Path(folder, "said.txt")
        said.touch()
        process = start_process(_look, (config, answer, said), context)
        try:
            process.join(longest_s)
            has_ended = process.exitcode is not None
        finally:
            process.kill()
        if answer.exists():
            return MemoryTrace.model_validate_json(answer.read_bytes())
        words = said.read_text().strip().splitlines() or ["it said nothing"]
        return MemoryTrace(why_not=words[-1]) if has_ended else None


def _look(args: tuple[Mapping[str, Any], Path, Path]) -> None:
    """The entry point of that process."""
    from lightning_modules.memory.trace import look  # imports torch

    look(*args)
