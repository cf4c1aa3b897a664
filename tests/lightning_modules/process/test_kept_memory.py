"""What a process keeps of the memory that it frees."""

import ctypes
import os
import subprocess
import sys

import pytest

# The blocks are taken from the C library alone: whether it gives back what tensors free is luck, as
# it cannot give back what lies below one of their small blocks.
_STEPS = """
import ctypes
import resource

from lightning_modules.process.device import keep_freed_memory

malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
free.argtypes, free.restype = [ctypes.c_void_p], None


def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [malloc(4 * 2**20) for _ in range(24)]
        for block in blocks:
            ctypes.memset(block, 1, 4 * 2**20)
        for block in blocks:
            free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


{call}
new_pages()
print(new_pages())
"""
_PAGES_OF_A_STEP = 24 * 4 * 2**20 // os.sysconf("SC_PAGE_SIZE")

pytestmark = pytest.mark.skipif(
    getattr(ctypes.CDLL(None), "mallopt", None) is None, reason="the C library is not glibc"
)


def _new_pages(call: str, **environment: str) -> float:
    """Of 20 steps that each take and free 96 MiB, in steps."""
    without = {
        k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))
    }
    out = subprocess.check_output(
        [sys.executable, "-c", _STEPS.format(call=call)], env=without | environment, text=True
    )
    return int(out) / _PAGES_OF_A_STEP


def test_what_a_step_frees_is_there_for_the_next_without_new_pages():
    assert _new_pages("") > 5

    assert _new_pages("keep_freed_memory()") < 1


def test_a_c_library_that_the_user_has_set_otherwise_is_left_as_it_is():
    assert _new_pages("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="1048576") > 5
