"""Decides what to run and where, and stores the results; never imports torch."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import analysis
    from sweeper.commands.from_python import plan, run, status
    from sweeper.spec.batch import split_global_batch, steps_per_epoch
    from sweeper.spec.lr_rules import (
        LEGW,
        AdamSDE,
        HalfLife,
        Linear,
        LinearCapped,
        NoScaling,
        Power,
        Saturating,
        Scaling,
        Sqrt,
        Surge,
    )
    from sweeper.spec.schedules import WSD, Constant, Cosine, PeriodicDecay, Polynomial, Training

__all__ = [
    "CONFIG_FOLDER", "LEGW", "WSD", "AdamSDE", "Constant", "Cosine", "HalfLife", "Linear",
    "LinearCapped", "NoScaling", "PeriodicDecay", "Polynomial", "Power", "Saturating", "Scaling",
    "Sqrt", "Surge", "Training", "analysis", "import_own", "plan", "run", "split_global_batch",
    "status", "steps_per_epoch",
]  # fmt: skip

#: Where the other names are: imported when one is asked for, as the command line needs none.
_PLACES = ("spec.batch", "spec.schedules", "spec.lr_rules", "commands.from_python")

_INSTALLED = Path(__file__).parent / "conf"

#: The folder of all defaults: inside the installed package, or next to it in a checkout.
CONFIG_FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "conf"


def import_own(name: str) -> None:
    """Import our package of this name, which stands beside `sweeper`, whatever else has its name.

    A project may have an `analysis.py` of its own: it is found first in the folder of the command,
    and in the processes that train, which do not call this.
    """
    init = Path(__file__).resolve().parents[1] / name / "__init__.py"
    loaded = sys.modules.get(name)
    if loaded is not None and Path(loaded.__file__ or "").resolve() == init:
        return
    spec = importlib.util.spec_from_file_location(name, init)
    assert spec is not None, "it is installed with this package"
    assert spec.loader is not None, "as above"
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "analysis":  # whatever else has this name where the command was started
        import_own(name)
        return sys.modules[name]
    for place in _PLACES if name in __all__ else ():
        module = importlib.import_module(f"sweeper.{place}")
        if hasattr(module, name):
            return getattr(module, name)
    msg = f"module 'sweeper' has no attribute {name!r}"
    raise AttributeError(msg)
