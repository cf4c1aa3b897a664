"""The command `python -m sweeper`: Hydra composes, the sweep runs."""

import importlib
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

from sweeper.commands.overrides import CONFIG_NAME, config_folder, in_users_words, plain
from sweeper.spec.exit_codes import BAD_INPUT

if TYPE_CHECKING:
    from sweeper.planning.tasks import Event, Tasks
    from sweeper.store.ledger import Ledger


_COMMANDS = {
    "plan": "sweeper.commands.plan",
    "status": "sweeper.commands.status",
    "doctor": "sweeper.commands.doctor",
    "compact": "sweeper.store.compaction",
    "equivalence": "sweeper.commands.equivalence",
    "analysis": "analysis.cli",
}


def main() -> None:
    """Run the command line; leave with its exit code."""
    if len(sys.argv) > 1 and sys.argv[1] in _COMMANDS:
        module = importlib.import_module(_COMMANDS[sys.argv.pop(1)])
        return module.main()
    return _sweep()


def _sweep() -> None:
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # so that errors come to us, not to the screen
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        _command()
        return
    from sweeper.launch.torchrun.launcher import lead_or_follow

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
    from sweeper.commands.run import run_sweep  # --help should not wait

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
    from sweeper.launch.local.launcher import run_here
    from sweeper.launch.local.slots import this_machine

    return run_here(tasks, ledger, this_machine(jobs=1, runs_per_gpu=1))
