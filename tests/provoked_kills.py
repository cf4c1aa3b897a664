"""Models whose process is killed, named by `_target_` in tests of what is left then."""

import os
import signal
import time
from pathlib import Path

import torch
from provoked import Plain
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class _Stuck(Dataset):
    """Notes the process that loads it, which then never comes back."""

    def __init__(self, note: str) -> None:
        self.note = note

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        Path(self.note).write_text(str(os.getpid()))
        time.sleep(3600)
        return index


class Leaving(Plain):
    """Ends, by SIGKILL or an error, while a data worker of its process is stuck."""

    def __init__(
        self, input_shape: tuple[int, int, int], num_classes: int, note: str, by: str
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.note, self.by = note, by

    def forward(self, images: Tensor) -> Tensor:
        loading = iter(DataLoader(_Stuck(self.note), num_workers=1))
        while not Path(self.note).exists():
            time.sleep(0.01)
        if self.by == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(f"{loading} of {len(images)} images")


class _TooLargeForCgroup(Dataset):
    """Takes more memory than a cgroup has."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup = cgroup

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Tensor:
        Path(self.cgroup, "cgroup.procs").write_text(str(os.getpid()))
        return torch.ones(2**28).sum() + index  # 1 GiB


class TooLargeForCgroup(Plain):
    """Takes too much memory, itself or in a data worker, if the micro-batch is above 384."""

    def __init__(
        self, input_shape: tuple[int, int, int], num_classes: int, cgroup: str, num_workers: int
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.loader = DataLoader(_TooLargeForCgroup(cgroup), num_workers=num_workers)

    def forward(self, images: Tensor) -> Tensor:
        if self.training and len(images) > 384:
            list(self.loader)
        return super().forward(images)
