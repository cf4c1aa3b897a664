"""Checks, before any run starts, that this machine has the device and the data it needs."""

import json
import os
import shutil
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sweeper.launch.local.slots import Machine
from sweeper.spec.config import RunConfig, is_ours
from sweeper.spec.method_checks import check_precision
from sweeper.spec.run_memory import CPU

_OTHER_GPUS = Path("/dev/kfd")  # AMD's, which nvidia-smi does not list


def check_ready(configs: Iterable[RunConfig], machine: Machine) -> None:
    """Refuse runs that could not take their first step on this machine.

    ValueError with a line for each thing that is missing.
    """
    has_gpu = bool(machine.gpus) or machine.device.kind != CPU.kind
    missing: dict[str, None] = {}
    seen: set[str] = set()
    for config in configs:
        data = json.dumps(config.data.group, sort_keys=True)
        try:
            check_precision(config, has_gpu=has_gpu)
            _check_device(config.accelerator, config.devices, machine, has_gpu=has_gpu)
            if config.compile:
                _check_compiler(on_gpu=bool(machine.gpus) and config.accelerator != "cpu")
        except ValueError as error:
            missing[str(error)] = None
        try:
            if data not in seen and is_ours(config.data.target):
                seen.add(data)
                count_data(config.data.group)
        except ValueError as error:
            missing[str(error)] = None
    if missing:
        raise ValueError("\n".join(missing))


def has_data(data: Mapping[str, Any]) -> bool:
    """Whether the data of a group are here, without a download; a user's own were loaded before."""
    return not is_ours(data["_target_"]) or _has_files(json.dumps(data))


@cache
def _has_files(data: str) -> bool:
    group = json.loads(data)
    try:
        count_data({**group, "download": False} if "download" in group else group)
    except (ValueError, OSError):
        return False
    return True


def _check_device(accelerator: str, devices: int, machine: Machine, *, has_gpu: bool) -> None:
    if accelerator == "gpu" and not has_gpu and not _OTHER_GPUS.exists():
        msg = (
            "accelerator=gpu needs a GPU; got none on this machine (nvidia-smi lists none). Use "
            "accelerator=auto, or a machine with a GPU."
        )
        raise ValueError(msg)
    if machine.gpus and accelerator != "cpu" and devices > len(machine.gpus):
        msg = (
            f"devices must be at most {len(machine.gpus)}, the GPUs of this machine; got "
            f"{devices=}. Use fewer, or accelerator=cpu."
        )
        raise ValueError(msg)


def _check_compiler(*, on_gpu: bool) -> None:
    """Refuse a machine on which torch.compile would fail: inductor's C++, or Triton's C."""
    own = os.environ.get("CC" if on_gpu else "CXX")
    names = [own] if own else ["gcc", "clang"] if on_gpu else ["g++"]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if (has_compiler := any(map(shutil.which, names))) and headers.exists():
        return
    msg = (
        f"compile=true needs a {'C' if on_gpu else 'C++'} compiler and Python's headers; got no "
        f"{headers if has_compiler else ' or '.join(names)} on this machine. Install them (Debian: "
        "g++ and python3-dev), or remove compile."
    )
    raise ValueError(msg)


def count_data(group: Mapping[str, Any]) -> dict[str, Any]:
    """The config group of a data set, with counts that are null replaced by those of its files.

    ValueError if files are missing, or the stated counts differ from theirs.
    """
    if "root" not in group:  # no file is read
        return dict(group)
    from lightning_modules.data.image_files import fill_counts  # numpy and pyarrow: 0.3 s

    return fill_counts(group)
