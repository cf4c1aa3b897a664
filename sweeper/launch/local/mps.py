"""CUDA's Multi-Process Service, which lets several processes run kernels on a GPU at once."""

import os
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
#: It reads until its parent closes the pipe or dies, so the service always ends with its parent.
_UNTIL_THEN = (
    f"trap '' PIPE; {_CONTROL} -d >/dev/null 2>&1 || exit 1; "
    f"echo up; read -r _; echo quit | {_CONTROL}"
)


@contextmanager
def mps(folder: Path) -> Generator[Mapping[str, str]]:
    """Run the service during the block; gives the variables that processes need to use it.

    There are none if this machine has no such service, or if it does not start.

    Args:
        folder: a private folder for its pipes and logs.
    """
    if shutil.which(_CONTROL) is None:
        yield {}
        return
    environment: dict[str, str] = {}
    for name in ("PIPE", "LOG"):
        path = folder / f"mps-{name.lower()}"
        path.mkdir(exist_ok=True)
        environment[f"CUDA_MPS_{name}_DIRECTORY"] = str(path)
    # With this variable set, the service would number the GPUs differently.
    seen = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    with subprocess.Popen(
        ["sh", "-c", _UNTIL_THEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**seen, **environment},
        start_new_session=True,  # Ctrl-C is for this process only
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        is_up = process.stdout.readline() == b"up\n"
        yield environment if is_up else {}
