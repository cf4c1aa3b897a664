"""Memory traces: the memory of runs, predicted in a separate process without training them."""

from sweeper.launch.ask_process import ask_process
from sweeper.launch.fork_server import ForkServerDied
from sweeper.spec.run_memory import MemoryTrace
from sweeper.spec.run_spec import RunSpec
from sweeper.store.memory_cache import MemoryCache

#: With fake tensors a trace takes seconds; a module that does not support them trains a few steps.
LONGEST_S = 600.0


def trace_memory(spec: RunSpec, memory: MemoryCache, *, longest_s: float = LONGEST_S) -> str:
    """Trace the memory of this kind of run and store it; a sentence if that fails, else empty.

    A trace that was given up before LONGEST_S is not stored, so that it can be repeated.
    """
    try:
        found = ask_process("memory", [spec.config.resolved], longest_s=longest_s)
    except ForkServerDied as error:
        return str(error)
    if found.values:
        trace = MemoryTrace.model_validate(found.values[0])
    elif not found.is_timed_out:
        trace = MemoryTrace(why_not=found.last_line)
    elif longest_s < LONGEST_S:
        stopped = f"The memory trace of {spec.point} was stopped after {longest_s:g} s"
        return f"{stopped}; `sweeper plan --memory` allows more."
    else:
        trace = MemoryTrace(why_not=f"its trace took more than {longest_s:g} s")
    memory.record_trace(spec, trace)
    if not trace.why_not:
        return ""
    return (
        f"The memory of {spec.point} cannot be predicted: {trace.why_not}. Only micro_batch_limit "
        "applies."
    )
