"""How a run can end. Failure is data: each end is a row with its reason."""

from enum import StrEnum


class Outcome(StrEnum):
    """How an attempt at a run ended, or what it is doing."""

    FINISHED = "finished"  # trained all epochs
    DIVERGED = "diverged"  # a non-finite loss: a scientific result, never retried
    OUT_OF_MEMORY = "out_of_memory"  # the device or the host ran out of memory
    TIMED_OUT = "timed_out"  # ran past timeout_s
    PREEMPTED = "preempted"  # stopped from outside; resumes from its checkpoint
    FAILED = "failed"  # an error in the code, the data or the machine

    @property
    def is_result(self) -> bool:
        """Whether the run is settled: trained to its end, or found to diverge."""
        return self in {Outcome.FINISHED, Outcome.DIVERGED}
