"""The process that a run trains in: its memory, memory probes, logs and torchrun's store."""
