"""A GPU's counter of energy without a GPU: NVML as far as runs ask it."""

# ruff: noqa: N802  NVML has such names
import sys
from types import SimpleNamespace
from typing import Any

from provoked import train_until

from lightning_modules import worker
from lightning_modules.process import energy_meter
from sweeper.spec.worker_args import WorkerArgs

#: In NVML's unit [millijoules].
KWH = 3.6e9


class NVMLError(Exception):
    """As NVML's; the text is what NVML says."""


class NotSupported(NVMLError):
    """As NVML's."""


class FakeNvml:
    """Stands in for the module pynvml; what is an error is raised.

    Attributes:
        counters: by the GPU's name [millijoules].
        users: processes on the GPU.
        mig_modes: now, and after a restart.
        init_error: of the library.
        step_mj: the counter goes up by this whenever it was read [millijoules].
    """

    NVMLError, NVMLError_NotSupported = NVMLError, NotSupported
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *names: str, step_mj: float = 0) -> None:
        self.counters: dict[str, Any] = dict.fromkeys(names, 10 * KWH)
        self.users: dict[str, Any] = {name: [7] for name in names}
        self.mig_modes: dict[str, Any] = {name: [0, 0] for name in names}
        self.init_error: NVMLError | None = None
        self._step_mj = step_mj

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.init_error

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        name = uuid.removeprefix("GPU-")
        if name == uuid or name not in self.counters:
            raise NVMLError("Not Found")
        return name

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.counters)[index]

    def nvmlDeviceGetMigMode(self, handle: str) -> Any:
        return _said(self.mig_modes[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return [SimpleNamespace(pid=pid) for pid in _said(self.users[handle])]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> Any:
        now = _said(self.counters[handle])
        self.counters[handle] = now + self._step_mj
        return now


def _said(value: Any) -> Any:
    if isinstance(value, NVMLError):
        raise value
    return value


def train_counted(until: int, args: WorkerArgs) -> None:
    """First function of a worker that takes 1 kWh between two readings, on the CPU in fact.

    Args:
        until: as of `provoked.train_until`.
        args: of the worker.
    """
    _be_on_gpu(FakeNvml("ours", step_mj=KWH))
    energy_meter._READ_EVERY_S = 3600.0  # it is read when training begins and ends
    train_until(until, args)


def _be_on_gpu(nvml: FakeNvml) -> None:
    sys.modules["pynvml"] = nvml  # type: ignore[assignment]
    energy_meter._gpu_uuid = lambda: "ours"
    enter = worker._enter

    def enter_on_gpu(*args: Any, **keys: Any) -> bool:
        enter(*args, **keys)
        return True

    worker._enter = enter_on_gpu
