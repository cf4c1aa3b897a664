"""NVML, which numbers GPUs as nvidia-smi does and knows the processes on them."""

from typing import Any


def gpu_users(nvml: Any, handle: Any) -> set[int]:
    """The ids of the processes that compute on a GPU, as far as they are seen from here.

    `nvml` is the module pynvml, of the package nvidia-ml-py (an extra).
    """
    return {user.pid for user in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
