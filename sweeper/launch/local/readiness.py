"""What a run needs of this machine, looked at before any starts: its device, its data."""

import json
from collections.abc import Iterable
from pathlib import Path

from sweeper.launch.local.slots import Machine
from sweeper.spec.config import RunConfig, is_ours
from sweeper.spec.memory import CPU
from sweeper.spec.method_checks import check_precision

_OTHER_GPUS = Path("/dev/kfd")  # AMD's, which nvidia-smi does not list


def check_ready(configs: Iterable[RunConfig], machine: Machine) -> None:
    """Refuse runs that could not take their first step on this machine.

    Raises:
        ValueError: with a line for each thing that is missing.
    """
    missing: dict[str, None] = {}
    seen: set[str] = set()
    for config in configs:
        data = json.dumps(config.data.group, sort_keys=True)
        checks = [_check_device, *([] if data in seen else [_check_data])]
        seen.add(data)
        for check in checks:
            try:
                check(config, machine)
            except ValueError as error:
                missing[str(error)] = None
    if missing:
        raise ValueError("\n".join(missing))


def _check_device(config: RunConfig, machine: Machine) -> None:
    has_gpu = bool(machine.gpus) or machine.device.kind != CPU.kind
    check_precision(config, has_gpu=has_gpu)
    if config.accelerator == "gpu" and not has_gpu and not _OTHER_GPUS.exists():
        msg = (
            "accelerator=gpu needs a GPU; got none on this machine (nvidia-smi lists none). Use "
            "accelerator=auto, or a machine with a GPU."
        )
        raise ValueError(msg)
    if machine.gpus and config.accelerator != "cpu" and config.devices > len(machine.gpus):
        msg = (
            f"devices must be at most {len(machine.gpus)}, the GPUs of this machine; got "
            f"devices={config.devices}. Use fewer, or accelerator=cpu."
        )
        raise ValueError(msg)


def _check_data(config: RunConfig, machine: Machine) -> None:
    del machine
    if is_ours(config.data.target):
        from lightning_modules.data.on_disk import counted  # numpy and pyarrow: 0.3 s

        counted(config.data.group)
