"""The memory that a run will take, predicted by a process of its own from fake tensors."""
