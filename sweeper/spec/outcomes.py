"""How a run can end, and the exit codes of the commands. Every outcome is a row."""

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


#: Outcomes after which another attempt may follow at once.
MAY_GO_ON = frozenset({Outcome.PREEMPTED, Outcome.OUT_OF_MEMORY})

DONE = 0  # every run has a result
RUN_FAILED = 1  # a run has none
BAD_INPUT = 2  # refused before anything started
CUT_SHORT = 75  # a SLURM job or a worker had to stop early (EX_TEMPFAIL of sysexits.h)
INTERRUPTED = 130  # stopped with Ctrl-C
