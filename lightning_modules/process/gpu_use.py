"""What a rank uses of its GPU, as counted by NVML, not estimated: energy, memory, utilisation.

NVML counts a whole device: the shares of several processes cannot be separated.
"""

import math
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from sweeper.spec.worker_args import CHECKPOINT, WorkerArgs
from sweeper.store.gpu_use import gpu_use_note
from sweeper.store.publish import publish_json

_MJ_PER_KWH = 3.6e9
_LOOK_EVERY_S, _LOOKS_TO_NOTE = 2.0, 5
_GIB = 2**30
#: The utilisation is this quantile of at least so many readings; it is low at the start.
_LEAST_READINGS, _QUANTILE = 5, 0.9


class _NotCounted(Exception):
    """The text says why, and what to do."""


@contextmanager
def noted_gpu_use(rank: WorkerArgs) -> Generator[None]:
    """Record in the attempt's folder what this process's GPU uses until the end of the block.

    The record is rewritten every few seconds: if this process is killed, the rest is missing.
    """
    meter, is_over = _Meter(rank), threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_EVERY_S):
            meter.look()
            meter.note(now_and_then=True)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
        meter.look()
        meter.note()


class _Meter:
    """What a GPU has used so far; gives up for good once that cannot be read."""

    def __init__(self, rank: WorkerArgs) -> None:
        folder = Path(rank.folder)
        self._note = folder / gpu_use_note(rank.rank)
        is_resumed = (folder.parent / CHECKPOINT).exists()
        self._about = {"world_size": rank.world_size, "is_resumed": is_resumed}
        self._kwh: float | None = None
        self._device_gib, self._uses, self._looks = 0.0, list[float](), 0
        try:
            self._gpu = _Gpu()
            self._began_mj = self._gpu.counted_mj()
        except _NotCounted as why:
            self._give_up(why)
        else:
            self._kwh = 0.0
        self.note()

    def look(self) -> None:
        """Read the counters, as long as this process alone uses the GPU."""
        self._looks += 1
        if self._kwh is None:
            return
        try:
            self._kwh = (self._gpu.counted_mj() - self._began_mj) / _MJ_PER_KWH
            device_gib, use_frac = self._gpu.taken()
        except _NotCounted as why:
            self._give_up(why)
        else:
            self._device_gib = max(self._device_gib, device_gib)
            self._uses += [] if use_frac is None else [use_frac]

    def note(self, *, now_and_then: bool = False) -> None:
        """Publish what was found; if `now_and_then`, only at some calls, to spare file systems."""
        if now_and_then and self._looks % _LOOKS_TO_NOTE:
            return
        found = {"kwh": self._kwh, "device_gib": self._device_gib or None, "use_frac": self._use}
        with suppress(OSError):  # a full disk fails no run that does not need it
            publish_json(self._note, {**self._about, **found})

    @property
    def _use(self) -> float | None:
        if len(self._uses) < _LEAST_READINGS:
            return None
        return sorted(self._uses)[math.ceil(_QUANTILE * (len(self._uses) - 1))]

    def _give_up(self, why: _NotCounted) -> None:
        self._kwh = None
        sys.stderr.write(f"Energy is not counted: {why}\n")


class _Gpu:
    """The GPU of this process as NVML knows it, which numbers GPUs differently from CUDA."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = import_module("pynvml")
        except ImportError as error:
            msg = "the package nvidia-ml-py is not installed (pip install nvidia-ml-py)."
            raise _NotCounted(msg) from error
        with self._reasons():
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{_uuid()}")
            if self._is_divided():
                msg = "the GPU is partitioned (MIG), and NVML counts all of it."
                raise _NotCounted(msg)

    def counted_mj(self) -> int:
        """The energy counter, which only goes up [millijoules]."""
        with self._reasons():
            users = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            num_users = len({user.pid for user in users})
            if num_users > 1:
                msg = f"{num_users} processes use the GPU, and NVML counts them together."
                raise _NotCounted(msg)
            if not num_users:
                msg = (
                    "NVML does not say which processes use the GPU, as in a container with its own "
                    "process ids (start it with docker run --pid=host)."
                )
                raise _NotCounted(msg)
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)

    def taken(self) -> tuple[float, float | None]:
        """Memory in use [GiB], and the fraction of the last second in which it computed."""
        with self._reasons():
            memory_gib = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used / _GIB
            try:
                percent = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
            except self._nvml.NVMLError_NotSupported:
                return memory_gib, None
            return memory_gib, percent / 100

    @contextmanager
    def _reasons(self) -> Generator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            msg = f"NVML says: {error}."
            raise _NotCounted(msg) from error

    def _is_divided(self) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle)
        except self._nvml.NVMLError_NotSupported:  # GPUs without MIG
            return False
        return current == self._nvml.NVML_DEVICE_MIG_ENABLE


def _uuid() -> str:
    """UUID of this process's GPU, on which NVML sees the process from now on."""
    torch.cuda.synchronize()  # CUDA opens the device at its first use
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
