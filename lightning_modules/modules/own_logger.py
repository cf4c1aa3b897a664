"""The logger of a user's module: it keeps nothing but files."""

from pathlib import Path

from pytorch_lightning.loggers.logger import DummyLogger


class OwnLogger(DummyLogger):
    """Takes whatever a module does with `self.logger`, and gives its files a folder.

    What is logged by `self.log` is recorded by the run. Files are written beside the path that
    loggers of Lightning have: `self.logger.log_dir`, `self.trainer.log_dir`.

    Args:
        folder: of the files; made when it is asked for.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @property
    def save_dir(self) -> str:
        """The folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return str(self._folder)

    @property
    def log_dir(self) -> str:
        """The same."""
        return self.save_dir

    @property
    def root_dir(self) -> str:
        """The same."""
        return self.save_dir
