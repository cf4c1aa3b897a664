"""What `plan` says of the memory of runs."""

import sys
from collections.abc import Sequence

from sweeper.launch.fork_server import open_fork_server
from sweeper.launch.memory_trace import trace_memory
from sweeper.spec.memory_classes import total_gib
from sweeper.spec.run_spec import RunSpec
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.row import planned_columns


def trace_unknown(specs: Sequence[RunSpec], memory: MemoryCache) -> bool:
    """Trace one of each kind of run that was not traced yet; whether there were any."""
    unknown = {memory.key(spec): spec for spec in specs if not memory.is_traced(spec)}
    context = open_fork_server()
    for number, spec in enumerate(unknown.values(), 1):
        sys.stderr.write(f"Tracing the memory of kind {number} of {len(unknown)}...\n")
        if why_not := trace_memory(spec, memory, context):
            sys.stderr.write(f"{why_not}\n")
    return bool(unknown)


def memory_words(spec: RunSpec, fit: Fit) -> str:
    """The memory that a run will take, by class; empty if it is not known."""
    if not fit.classes:
        return ""
    parts = (f"{name.replace('_', ' ')} {size:.2g}" for name, size in fit.classes.items())
    return (
        f"Memory of {planned_columns(spec)['model']}, {spec.config.optimizer.name}, "
        f"{spec.config.precision}, micro-batch {spec.split.micro_batch}: "
        f"{total_gib(fit.classes):.3g} GiB ({', '.join(parts)})."
    )
