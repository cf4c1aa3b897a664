"""Copies to and from a GPU that the process does not wait for."""

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
