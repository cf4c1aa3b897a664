"""How a run can end. Failure is data: every outcome is a row with its reason."""

from enum import StrEnum


class Outcome(StrEnum):
    """How an attempt at a run ended."""

    FINISHED = "finished"  # trained all epochs
    DIVERGED = "diverged"  # a non-finite loss: a scientific result, never retried
    OUT_OF_MEMORY = "out_of_memory"  # the device or the host ran out of memory
    TIMED_OUT = "timed_out"  # ran past timeout_s
    PREEMPTED = "preempted"  # stopped from outside; resumes from its checkpoint
    FAILED = "failed"  # an error in the code, the data or the machine

    @property
    def is_result(self) -> bool:
        """Whether the run needs no other attempt: it trained to its end, or diverged."""
        return self in {Outcome.FINISHED, Outcome.DIVERGED}
