"""The logger of a user's module, which provides a folder and ignores everything else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import DummyLogger


class OwnLogger(DummyLogger):
    """Accepts whatever a module does with `self.logger`, and gives its files a folder.

    What is logged by `self.log` is recorded by the run. The folder has the names that Lightning's
    loggers use: `self.logger.log_dir`, `self.trainer.log_dir`.

    Args:
        folder: for the files; created when it is first asked for.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._experiment = folder, _Nothing()

    @property
    def experiment(self) -> Any:
        """Accepts anything: `experiment.config.update(...)`, `experiment["a"].append(...)`."""
        return self._experiment

    @property
    def save_dir(self) -> str:
        """The folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return str(self._folder)

    log_dir = root_dir = save_dir  # pyright: ignore[reportIncompatibleMethodOverride]


class _Nothing:
    """Returns itself for any attribute, call or item."""

    def __getattr__(self, name: str) -> "_Nothing":
        if name.startswith("__"):  # it is no container, and no number
            raise AttributeError(name)
        return self

    def _return_self(self, *_: Any, **__: Any) -> "_Nothing":
        return self

    def _return_none(self, *_: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    __call__ = __getitem__ = __enter__ = _return_self
    __setitem__ = __exit__ = _return_none
