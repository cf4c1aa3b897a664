"""The command `python -m sweeper`: Hydra composes, the sweep runs."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sweeper.compose import CONFIG_NAME, config_folder, in_users_words, plain
from sweeper.exit_codes import BAD_INPUT

if TYPE_CHECKING:
    from sweeper.launch.events import Event, Tasks
    from sweeper.ledger import Ledger


def main() -> None:
    """Run the command line; leave with its exit code."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # so that errors come to us, not to the screen
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        _command()
        return
    from sweeper.launch.torchrun import lead_or_follow

    lead_or_follow(_command)


def _command() -> None:
    try:
        _composed()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    print(f"Nothing was started.\n{in_users_words(str(error))}", file=sys.stderr)  # noqa: T201
    sys.exit(BAD_INPUT)


@hydra.main(version_base="1.3", config_path=str(config_folder()), config_name=CONFIG_NAME)
def _composed(config: DictConfig) -> None:
    """One run: without `-m`, or as a job of one of Hydra's own launchers."""
    if multiprocessing.get_start_method(allow_none=True) == "loky":  # joblib's; unknown to workers
        multiprocessing.set_start_method("forkserver", force=True)
    from sweeper.sweep import run_sweep  # --help should not wait

    settings, is_job = plain(config), HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        code = run_sweep([settings], settings, _launch)
    except ValueError as error:
        if is_job:
            raise
        _refuse(error)  # here: Hydra would say more than that
    if not is_job:
        sys.exit(code)
    if code:  # leaving would take the jobs after it down
        msg = f"the run has no result, see {settings['results']}"
        raise RuntimeError(msg)


def _launch(tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
    """Where the launcher says that was chosen; a job of one of Hydra's own makes its run itself."""
    launcher = hydra.utils.instantiate(HydraConfig.get().launcher)
    if hasattr(launcher, "launch_runs"):
        return launcher.launch_runs(tasks, ledger)
    from sweeper.launch.local import run_here
    from sweeper.launch.slots import this_machine

    return run_here(tasks, ledger, this_machine(jobs=1, runs_per_gpu=1))
