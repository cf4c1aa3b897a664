"""The process that a run trains in: its memory, memory traces, logs and torchrun's store."""
