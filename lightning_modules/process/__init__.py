"""The process that a run trains in: its memory, logs, clock and the other ranks."""
