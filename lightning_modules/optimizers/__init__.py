"""Optimizers for large batches that torch does not have, and the groups they work on."""
