"""Imports of torch and Lightning: without garbage collection, and without a shell's settings.

Importing torch leaves no garbage. Lightning takes Trainer arguments and a seed from environment
variables, which no config shows and no row records. On import it also takes the rank that other
launchers set, and if that is above 0, its loggers do not write.
"""

import atexit
import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

#: Prefix of variables with Trainer arguments, such as PL_TRAINER_LIMIT_VAL_BATCHES.
TRAINER_PREFIX = "PL_TRAINER_"
_NOT_OURS = (
    "PL_GLOBAL_SEED", "PL_SEED_WORKERS",
    "RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK",
)  # fmt: skip


@contextmanager
def importing() -> Generator[None]:
    """Import in four fifths of the time, by keeping the garbage collector off what is imported.

    The variables above are removed for good; a worker sets those of its own rank.
    """
    for name in [name for name in os.environ if name.startswith(TRAINER_PREFIX)] + [*_NOT_OURS]:
        os.environ.pop(name, None)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # so that modules can be torn down at exit
        gc.enable()
