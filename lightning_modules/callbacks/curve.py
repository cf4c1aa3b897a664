"""What a run measures of itself: realised batches, realised learning rates, curves."""

import hashlib
import math
import struct
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Diverged(Exception):
    """The loss became non-finite or passed its ceiling; the text says where."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Counts and sums of one run, resumable; plain containers only.

    Attributes:
        curve: one mapping per completed epoch, with the columns of the curves table.
        realised_batch_min: smallest number of examples in an optimizer step, over all ranks.
        realised_batch_max: largest number of examples in an optimizer step, over all ranks.
        steps: optimizer steps taken [steps].
        lr_series_hash: chain hash of the realised learning rates, one link per step.
        train_s: time spent training, validation left out [seconds].
    """

    curve: list[dict[str, Any]] = field(default_factory=list)
    realised_batch_min: int | None = None
    realised_batch_max: int | None = None
    steps: int = 0
    lr_series_hash: str = ""
    last_lr: float = math.nan
    train_s: float = 0.0
    elapsed_s: float = 0.0

    def count_step(self, lr: float) -> None:
        """Note the learning rate that an optimizer step in fact used."""
        link = bytes.fromhex(self.lr_series_hash) + struct.pack("<d", lr)
        self.lr_series_hash = hashlib.blake2b(link, digest_size=8).hexdigest()
        self.last_lr = lr
        self.steps += 1

    def count_batches(self, examples: Tensor) -> None:
        """Note the examples of each optimizer step, shape (steps,), summed over all ranks."""
        smallest, largest = int(examples.min()), int(examples.max())
        self.realised_batch_min = min(smallest, self.realised_batch_min or smallest)
        self.realised_batch_max = max(largest, self.realised_batch_max or largest)

    def state(self) -> dict[str, Any]:
        """Everything, as plain containers, for the checkpoint and the record."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Recorder":
        """The recorder that `state` was taken from."""
        return cls(**state)


class BatchContractBroken(Exception):
    """The examples of an optimizer step are not the global batch that was asked for."""


def check_contract(counted: Tensor, *, steps: int, asked: int, epoch: int) -> None:
    """Compare what an epoch trained on with what it was to train on.

    Args:
        counted: examples of each optimizer step, shape (steps,), summed over all ranks.
        steps: planned for the epoch [steps].
        asked: the global batch [examples].
        epoch: 0-based.

    Raises:
        BatchContractBroken: if they differ.
    """
    if len(counted) != steps or (counted != asked).any():
        msg = (
            f"every epoch must have {steps} optimizer steps of {asked} examples; epoch "
            f"{epoch + 1} had {len(counted)} steps of {int(counted.min())} to "
            f"{int(counted.max())} examples. The data or the ranks are not those planned."
        )
        raise BatchContractBroken(msg)


class EpochSums:
    """Sums over the examples of one epoch on this rank, kept on the device until the end."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._started = time.perf_counter()

    def add(self, loss: Tensor, correct: Tensor, examples: int) -> None:
        """Add a micro-batch: mean loss, number right, number of examples."""
        count = torch.full_like(correct, examples)
        self._sums += torch.stack([loss.detach() * examples, correct, count]).double()

    def state(self) -> dict[str, Any]:
        """This rank's sums so far: of losses, of the right, of examples; and the seconds."""
        return {"totals": self._sums, "seconds": self.seconds}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._sums = state["totals"].to(self._sums.device)
        self._started = time.perf_counter() - state["seconds"]

    def means(self) -> tuple[float, float]:
        """Mean loss and accuracy over all examples on all ranks."""
        loss, correct, examples = all_reduced(self._sums).tolist()
        return loss / examples, correct / examples

    @property
    def seconds(self) -> float:
        """Since the epoch began [seconds]."""
        return time.perf_counter() - self._started


def all_reduced(tensor: Tensor) -> Tensor:
    """The sum over ranks."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(tensor)
    return tensor
