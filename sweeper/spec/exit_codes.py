"""Exit codes of the commands."""

DONE = 0  # every run has a result
RUN_FAILED = 1  # at least one run has none
BAD_INPUT = 2  # refused before anything started
INTERRUPTED = 130  # stopped with Ctrl-C
