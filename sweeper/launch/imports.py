"""Imports of torch and Lightning: without garbage collection, and without a shell's settings.

Of what torch brings, nothing is garbage. Lightning takes arguments of its Trainer and a seed from
variables of the environment, which no config shows and no row records; and, as it is imported, the
rank of other launchers, above 0 of which no logger writes.
"""

import atexit
import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

#: Of the Trainer's arguments, such as PL_TRAINER_LIMIT_VAL_BATCHES.
TRAINER_PREFIX = "PL_TRAINER_"
_NOT_OURS = (
    "PL_GLOBAL_SEED", "PL_SEED_WORKERS",
    "RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK",
)  # fmt: skip


@contextmanager
def importing() -> Generator[None]:
    """Import in four fifths of the time; what is there then is never looked through again.

    The variables above are gone from then on; a worker sets those of its own rank.
    """
    for name in [name for name in os.environ if name.startswith(TRAINER_PREFIX)] + [*_NOT_OURS]:
        os.environ.pop(name, None)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # so that modules can be taken apart at the end
        gc.enable()
