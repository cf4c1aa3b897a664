"""Torch and driver, devices, shared memory, network interface of this machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sweeper.commands.checks.check import Check, broken, good, warning
from sweeper.launch.local.slots import query_gpus

_GIB = 2**30
_SMALLEST_SHM_GIB = 1.0
_MALICIOUS = {"2.6.2", "2.6.3"}  # of lightning, April 2026; pytorch-lightning was clean
_TORCH_TIMEOUT_S = 120
_ASK_TORCH = (
    "import json, torch;"
    "print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda,"
    "'available': torch.cuda.is_available(), 'count': torch.cuda.device_count()}))"
)


def machine_checks(*, devices: int) -> Iterator[Check]:
    """Check this machine."""
    yield from lightning_checks()
    driver = next(iter(query_gpus("driver_version")), None)
    yield from torch_checks(_ask_torch(), devices=devices, driver=driver)
    yield shared_memory_check(Path("/dev/shm"))
    yield from interface_checks(dict(os.environ), hostname=socket.gethostname())


def lightning_checks() -> Iterator[Check]:
    """Name the malicious releases; only the metadata is read, as an import would start them.

    Source: the advisory GHSA-w37p-236h-pfx3.
    """
    with suppress(PackageNotFoundError):
        if (found := version("lightning")) in _MALICIOUS:
            yield broken(
                "lightning",
                f"{found} is a malicious release, which takes credentials when it is imported",
                "Uninstall it, and replace the passwords, tokens and keys that this machine knew.",
            )


def _ask_torch() -> dict[str, Any] | str:
    """Torch's version and devices, from a separate process; its last error line if that fails."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_TORCH],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TORCH_TIMEOUT_S,
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return (done.stderr.strip().splitlines() or ["it exited without a message"])[-1]


def torch_checks(
    torch: dict[str, Any] | str, *, devices: int, driver: str | None
) -> Iterator[Check]:
    """Whether torch starts, can use the driver's GPUs, and sees enough of them."""
    if isinstance(torch, str):
        yield broken("torch", f"does not start: {torch}", "Reinstall it for this machine.")
        return
    yield good("torch", f"{torch['version']}, CUDA {torch['cuda'] or 'none'}")
    if driver is None:
        yield good("GPUs", "no NVIDIA driver: runs train on the CPU")
        return
    if not torch["available"]:
        found = f"driver {driver} is installed, but this torch cannot use it"
        supported = "Install a torch whose CUDA version the driver supports (see nvidia-smi)."
        yield broken("GPUs", found, supported)
        return
    if torch["count"] < devices:
        found = f"{torch['count']} here; devices={devices} requested"
        yield broken("GPUs", found, "Request fewer devices, or a node (or a job) with more GPUs.")
    else:
        yield good("GPUs", f"{torch['count']}, driver {driver}")


def shared_memory_check(folder: Path) -> Check:
    """Shared memory, for the data sets that runs share."""
    if not folder.is_dir():
        remedy = "Runs then share data sets through a temporary folder, which is slower."
        return warning(str(folder), "does not exist", remedy)
    free_gib = shutil.disk_usage(folder).free / _GIB
    if free_gib < _SMALLEST_SHM_GIB:
        remedy = "Shared data sets may not fit. In a container: --shm-size or --ipc=host."
        return warning(str(folder), f"{free_gib:.2f} GiB free", remedy)
    return good(str(folder), f"{free_gib:.1f} GiB free")


def interface_checks(environment: dict[str, str], *, hostname: str) -> Iterator[Check]:
    """Whether ranks on several nodes would find each other."""
    known = {name for _, name in socket.if_nameindex()}
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = environment.get(variable, "")
        names = [name.lstrip("=") for name in value.split(",") if name and value[0] != "^"]
        absent = [n for n in names if not any(have.startswith(n) for have in known)]
        if absent:
            yield broken(
                variable,
                f"names {', '.join(absent)}; this machine has {', '.join(sorted(known))}",
                f"Unset {variable} or name an interface that every node has.",
            )
        elif "lo" in names:
            yield broken(variable, "names lo, which cannot reach other nodes", f"Unset {variable}.")
    try:
        address = socket.gethostbyname(hostname)
    except OSError:
        remedy = (
            "Runs over several nodes use the address from srun; NCCL may need NCCL_SOCKET_IFNAME."
        )
        yield warning("host name", f"{hostname} has no address", remedy)
        return
    remark = " on this machine; torchrun over several machines needs --local-addr=ADDRESS"
    is_loopback = address.startswith("127.")
    yield good("host name", f"{hostname} is {address}{remark if is_loopback else ''}")
