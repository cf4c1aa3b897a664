"""One Lightning in a process: `lightning.pytorch` is `pytorch_lightning`.

Both packages hold the same code, and a Trainer of one refuses a module of the other. A project may
say `import lightning as L` or `import pytorch_lightning as pl`, whether `lightning` is installed or
not: it gets the classes of the Trainer that trains it.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_SAME = {"lightning.pytorch": "pytorch_lightning", "lightning.fabric": "lightning_fabric"}
_OF_LIGHTNING = ("Callback", "LightningDataModule", "LightningModule", "Trainer", "seed_everything")


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Our loaders for the duplicate names, and for `lightning` where it is not installed."""
        del path, target
        for double, original in _SAME.items():
            if fullname == double or fullname.startswith(f"{double}."):
                return ModuleSpec(fullname, _Original(original + fullname.removeprefix(double)))
        if fullname == "lightning" and PathFinder.find_spec(fullname) is None:
            return ModuleSpec(fullname, _Substitute(), is_package=True)
        return None


class _Original(Loader):
    """Loads a module under its second name: the same object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has just set the second name's


class _Substitute(Loader):
    """Provides the top-level names of `lightning`."""

    def create_module(self, spec: ModuleSpec) -> None:
        del spec

    def exec_module(self, module: ModuleType) -> None:
        original = importlib.import_module("pytorch_lightning")
        fabric = importlib.import_module("lightning_fabric")
        vars(module).update({name: getattr(original, name) for name in _OF_LIGHTNING})
        vars(module).update(Fabric=fabric.Fabric, __version__=original.__version__)


def unite() -> None:
    """Let later imports of `lightning` find `pytorch_lightning`; call before any of them.

    Raises:
        ImportError: if `lightning.pytorch` has been imported as itself.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "lightning.pytorch" in sys.modules:
        msg = (
            "lightning.pytorch must be imported after sweeper's own modules, so that it can be "
            "pytorch_lightning; it is imported already. Import lightning_modules first."
        )
        raise ImportError(msg)
    sys.meta_path.insert(0, _Finder())
