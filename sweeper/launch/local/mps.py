"""CUDA's Multi-Process Service, with which kernels of several processes run on a GPU at once."""

import os
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
#: Reads until whoever started it closes the pipe or dies: so the service ends with it in any case.
_UNTIL_THEN = (
    f"trap '' PIPE; {_CONTROL} -d >/dev/null 2>&1 || exit 1; "
    f"echo up; read -r _; echo quit | {_CONTROL}"
)


@contextmanager
def mps(folder: Path) -> Generator[Mapping[str, str]]:
    """Start the service for the time of the block; what its processes must see of it.

    Nothing, if there is no such service on this machine or it does not start.

    Args:
        folder: private, for its pipes and logs.
    """
    if shutil.which(_CONTROL) is None:
        yield {}
        return
    environment: dict[str, str] = {}
    for name in ("PIPE", "LOG"):
        path = folder / f"mps-{name.lower()}"
        path.mkdir(exist_ok=True)
        environment[f"CUDA_MPS_{name}_DIRECTORY"] = str(path)
    # With this variable the service would number the GPUs otherwise.
    seen = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    with subprocess.Popen(
        ["sh", "-c", _UNTIL_THEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**seen, **environment},
        start_new_session=True,  # Ctrl-C is this process's business
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        is_up = process.stdout.readline() == b"up\n"
        yield environment if is_up else {}
