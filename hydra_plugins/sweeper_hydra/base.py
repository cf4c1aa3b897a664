"""What our sweepers and launchers share: they know runs, not Hydra's jobs."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from sweeper.planning.tasks import Event, Tasks
    from sweeper.store.ledger import Ledger


class RunLauncher(Launcher):
    """A place to run."""

    _refusal: ClassVar[str]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before anything is launched; the tasks say all there is to know."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Not for Hydra's own sweepers: they know jobs, not runs."""
        del job_overrides, initial_job_idx
        raise NotImplementedError(self._refusal)

    @abstractmethod
    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs and report what happens."""


class RunSweeper(Sweeper):
    """Knows which runs to make.

    Args:
        params: words of a preset by key, which words of the command line replace.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = dict(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before `sweep`."""
        self._context, self._config = hydra_context, config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def _launch(self) -> Any:
        """The launcher's way to make runs.

        Raises:
            ValueError: if it is one of Hydra's own, which know jobs, not runs.
        """
        if isinstance(self._launcher, RunLauncher):
            return self._launcher.launch_runs
        msg = (
            "hydra/launcher must be local or slurm with this sweeper; got "
            f"{type(self._launcher).__name__}. With Hydra's own launchers use hydra/sweeper=basic."
        )
        raise ValueError(msg)
