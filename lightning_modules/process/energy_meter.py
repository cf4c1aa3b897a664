"""The energy of a rank's GPU, as counted by NVML, not estimated.

NVML counts a whole device: the shares of several processes cannot be separated.
"""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from sweeper.spec.worker_args import CHECKPOINT, WorkerArgs
from sweeper.store.energy import energy_note
from sweeper.store.publish import publish_json
from sweeper.upstream.nvml import gpu_users

_MJ_PER_KWH = 3.6e9
#: The counter is read this often [seconds], and every so many readings it is noted.
_READ_EVERY_S, _READINGS_PER_NOTE = 2.0, 5


class _NotCounted(Exception):
    """The text says why, and what to do."""


@contextmanager
def record_energy(rank: WorkerArgs) -> Generator[None]:
    """Record in the attempt's folder the energy of this process's GPU until the end of the block.

    The record is rewritten every few seconds: if this process is killed, the rest is missing.
    """
    meter, is_over = _Meter(rank), threading.Event()

    def read_repeatedly() -> None:
        readings = 0
        while not is_over.wait(_READ_EVERY_S):
            meter.read()
            readings += 1
            if readings % _READINGS_PER_NOTE == 0:  # rarely, to spare file systems
                meter.publish()

    reader = threading.Thread(target=read_repeatedly, daemon=True)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()
        meter.read()
        meter.publish()


class _Meter:
    """The energy that a GPU has used so far; gives up for good if it cannot be read."""

    def __init__(self, rank: WorkerArgs) -> None:
        folder = Path(rank.folder)
        self._note = folder / energy_note(rank.rank)
        is_resumed = (folder.parent / CHECKPOINT).exists()
        self._about = {"world_size": rank.world_size, "is_resumed": is_resumed}
        self._kwh: float | None = 0.0
        try:
            self._gpu = _Gpu()
            self._began_mj = self._gpu.energy_mj()
        except _NotCounted as why:
            self._give_up(why)
        self.publish()

    def read(self) -> None:
        """Read the counter, as long as this process alone uses the GPU."""
        if self._kwh is None:
            return
        try:
            self._kwh = (self._gpu.energy_mj() - self._began_mj) / _MJ_PER_KWH
        except _NotCounted as why:
            self._give_up(why)

    def publish(self) -> None:
        """Write the note, replacing the earlier note."""
        with suppress(OSError):  # a full disk fails no run that does not need it
            publish_json(self._note, {**self._about, "kwh": self._kwh})

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
        with self._explain_errors():
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{_gpu_uuid()}")
            with suppress(self._nvml.NVMLError_NotSupported):  # GPUs without MIG
                current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle)
                if current == self._nvml.NVML_DEVICE_MIG_ENABLE:
                    msg = "the GPU is partitioned (MIG), and NVML counts all of it."
                    raise _NotCounted(msg)

    def energy_mj(self) -> int:
        """The energy counter, which only goes up [millijoules]."""
        with self._explain_errors():
            num_users = len(gpu_users(self._nvml, self._handle))
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

    @contextmanager
    def _explain_errors(self) -> Generator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            msg = f"NVML says: {error}."
            raise _NotCounted(msg) from error


def _gpu_uuid() -> str:
    """UUID of this process's GPU, on which NVML sees the process from now on."""
    torch.cuda.synchronize()  # CUDA opens the device at its first use
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
