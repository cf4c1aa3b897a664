"""Memory traces: what runs will take, found by a process of its own that trains nothing."""

import tempfile
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from sweeper.launch.fork_server import ForkServerDied, start_process
from sweeper.spec.memory_classes import MemoryTrace
from sweeper.spec.run_spec import RunSpec
from sweeper.store.memory_cache import MemoryCache

#: With fake tensors it takes seconds; a module that they do not carry trains a few steps.
_LONGEST_S = 600.0


def trace_memory(spec: RunSpec, memory: MemoryCache, context: ForkServerContext) -> str:
    """Trace the memory of such runs and remember it; a sentence if that cannot be done."""
    try:
        trace = _traced(spec.config.resolved, context)
    except ForkServerDied as error:
        return str(error)
    memory.record_trace(spec, trace)
    if not trace.why_not:
        return ""
    return (
        f"The memory of {spec.point} cannot be predicted: {trace.why_not}. Only micro_batch_limit "
        "applies."
    )


def _traced(config: Mapping[str, Any], context: ForkServerContext) -> MemoryTrace:
    with tempfile.TemporaryDirectory() as folder:
        answer, said = Path(folder, "trace.json"), Path(folder, "said.txt")
        said.touch()
        process = start_process(_look, (config, answer, said), context)
        try:
            process.join(_LONGEST_S)
            has_ended = process.exitcode is not None
        finally:
            process.kill()
        if answer.exists():
            return MemoryTrace.model_validate_json(answer.read_bytes())
        words = said.read_text().strip().splitlines()
        last = words[-1] if words else "it said nothing"
        return MemoryTrace(why_not=last if has_ended else f"a trace took {_LONGEST_S:g} s")


def _look(args: tuple[Mapping[str, Any], Path, Path]) -> None:
    """First function of the process."""
    from lightning_modules.process.memory_trace import look  # imports torch

    look(*args)
