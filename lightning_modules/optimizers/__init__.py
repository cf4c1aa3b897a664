"""Optimizers for large batches that torch does not have, and the strategy of their steps."""
