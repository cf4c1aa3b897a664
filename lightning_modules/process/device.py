"""The device that a process trains on: its memory, and copies that nothing waits for."""

import ctypes
import os
import resource
import sys

import torch
from torch import Tensor


def copy_async(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; a copy to a GPU is queued behind the GPU's earlier work."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class AsyncScalar:
    """A number on its way from the device that computes it.

    Attributes:
        ready: whether it can be read without waiting.
    """

    def __init__(self, number: Tensor) -> None:
        self.ready = not number.is_cuda
        self._number = torch.empty((), dtype=number.dtype, pin_memory=number.is_cuda)
        self._number.copy_(number, non_blocking=True)
        self._copied = torch.cuda.Event() if number.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def item(self) -> float:
        """The number, once it is here."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._number.item()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the device or the machine did not suffice."""
    # on a CPU torch only says so in the message
    is_cpu_out = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_cpu_out or isinstance(error, torch.OutOfMemoryError | MemoryError)


def peak_memory_gib(device: torch.device) -> float:
    """Most memory in use at once: of the tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return peak_of_process_gib()


def peak_of_process_gib() -> float:
    """Most memory that this process has held at once: all that is resident, libraries and data."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


#: Options of glibc's mallopt, by number, and the environment variables that set them.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_SET_BY_USERS = frozenset({"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"})
_MOST_IN_HEAP, _MOST_KEPT = 32 * 2**20, 128 * 2**20  # bytes; glibc takes no larger first value


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next, up to 128 MiB.

    By default it gives the end of its heap back to the system once this exceeds twice the largest
    block that was freed, so most steps get their activations as new pages, which the system must
    find and clear. Blocks above 32 MiB are always taken from the system and given back. Nothing is
    changed if the library lacks these options or the user has set them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _SET_BY_USERS & os.environ.keys():
        return
    mallopt(_MMAP_THRESHOLD, _MOST_IN_HEAP)
    mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
