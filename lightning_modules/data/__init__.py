"""Data sets, each an epoch of examples that is a function of (seed, epoch)."""
