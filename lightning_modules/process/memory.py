"""A process's device and its peak memory use."""

import resource
import sys

import torch


def device_kind(device: torch.device) -> str:
    """The name of a GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_memory_gib(device: torch.device) -> float:
    """Most memory in use at once: of the tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return peak_of_process_gib()


def peak_of_process_gib() -> float:
    """Most memory that this process has held at once: all that is resident, libraries and data."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
