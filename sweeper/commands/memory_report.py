"""The memory of runs as `plan` predicts it: tracing what is unknown, and the words for it."""

import time

from sweeper.console.printing import note
from sweeper.launch.fork_server import open_fork_server
from sweeper.launch.local.readiness import has_data
from sweeper.launch.memory_trace import LONGEST_S, trace_memory
from sweeper.planning.plan import Plan
from sweeper.spec.run_memory import DEVICE, total_gib
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.row import planned_columns

#: Unless asked for, no trace starts after the first time, and each is given up after the second.
_UNASKED_S, _UNASKED_TRACE_S = 30.0, 60.0


def trace_unknown(planned: Plan, memory: MemoryCache, *, is_asked: bool | None) -> bool:
    """Trace one run of each kind whose memory is not known; return whether there were any.

    Args:
        planned: the runs; those with a result or without local data are included only if asked for.
        memory: the cache of known traces.
        is_asked: whether to trace all of them, also those whose trace failed before.
    """
    specs = planned.specs if is_asked else planned.without_result
    lacking = [spec for spec in specs if not planned.fits[spec.run_id].classes]
    unknown = memory.distinct_kinds(lacking)
    if not is_asked:
        unknown = [spec for spec in unknown if not memory.is_traced(spec) and has_data(spec.config)]
    if not unknown:
        return False
    without = "" if is_asked else " (--no-memory skips this)"
    note(f"Tracing the memory of {several(len(unknown), 'kind')} of run{without}...")
    open_fork_server()
    began = time.monotonic()
    for number, spec in enumerate(unknown):
        if not is_asked and time.monotonic() - began > _UNASKED_S:
            left = several(len(unknown) - number, "kind")
            note(f"Not traced within half a minute: {left} of run. --memory traces them all.")
            break
        longest_s = LONGEST_S if is_asked else _UNASKED_TRACE_S
        if why_not := trace_memory(spec, memory, longest_s=longest_s):
            note(why_not)
    return True


def describe_memory(spec: RunSpec, fit: Fit) -> str:
    """A run's predicted memory by class, as a sentence; empty if it is not known."""
    if not fit.classes:
        return ""
    parts = [
        f"{name.replace('_', ' ')} {_gib_text(gib)}" for name, gib in fit.classes.items() if gib
    ]
    if not fit.classes[DEVICE]:
        parts.append("device not known")
    return (
        f"Memory of {planned_columns(spec)['model']}, {spec.config.optimizer.name}, "
        f"{spec.config.precision}, micro-batch {spec.split.micro_batch}: "
        f"{_gib_text(total_gib(fit.classes))} ({', '.join(parts)})."
    )


def _gib_text(gib: float) -> str:
    for unit, in_gib in (("GiB", 1), ("MiB", 2**-10)):
        if gib >= 0.1 * in_gib:
            return f"{gib / in_gib:.3g} {unit}"
    return f"{gib * 2**20:.3g} KiB"
