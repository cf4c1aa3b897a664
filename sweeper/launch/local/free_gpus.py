"""The GPUs that no other process uses, which are waited for with `wait_for_gpu=true`."""

import os
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import Event

LEFT_OUT = "Left out, as others use them"
_LOOK_EVERY_S, _TICK_S = 10.0, 0.2


def find_free_gpus(machine: Machine, needed: int, *, wait: bool) -> Generator[Event, None, Machine]:
    """The machine with the GPUs alone that no other process uses now; at least `needed` of them.

    ValueError if there are fewer, unless they are to be waited for.
    """
    is_told = False
    while needed:
        left, names = leave_occupied(machine)
        if not names or len(left.gpus) >= needed:
            yield Event(said=[f"{LEFT_OUT}: {names}."] if names else [])
            return left
        if not wait:
            msg = (
                f"devices={needed} must be free; got {len(left.gpus)} free of {len(machine.gpus)}, "
                f"as others use {names}. Wait for them with wait_for_gpu=true, choose GPUs with "
                "CUDA_VISIBLE_DEVICES, or use accelerator=cpu."
            )
            raise ValueError(msg)
        yield Event(said=[] if is_told else [f"Waiting for GPUs that others use: {names}."])
        is_told, look_at = True, time.monotonic() + _LOOK_EVERY_S
        while time.monotonic() < look_at:
            time.sleep(_TICK_S)
            yield Event()
    return machine


def leave_occupied(machine: Machine) -> tuple[Machine, str]:
    """The machine with its free GPUs alone, and the names of the others; empty if there are none.

    All count as free if NVML cannot tell, or if the user has set CUDA_VISIBLE_DEVICES.
    """
    occupied: dict[str, str] = {}
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return machine, ""
    with suppress(nvml.NVMLError):
        gpus = () if "CUDA_VISIBLE_DEVICES" in os.environ else machine.gpus
        for gpu in gpus:
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByIndex(int(gpu))
            users = nvml.nvmlDeviceGetComputeRunningProcesses(handle)  # as far as seen from here
            for pid in sorted(user.pid for user in users)[:1]:
                name = Path(f"/proc/{pid}/comm")
                of = f" {name.read_text().strip()}" if name.exists() else ""
                occupied[gpu] = f"GPU {gpu} (process {pid}{of})"
    free = [gpu for gpu in machine.gpus if gpu not in occupied]
    return replace(machine, gpus=free), ", ".join(occupied.values())
