"""The command `python -m sweeper`: Hydra composes, the sweep runs."""

import multiprocessing
import os
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sweeper.compose import CONFIG_NAME, config_folder, in_users_words, plain
from sweeper.exit_codes import BAD_INPUT


def main() -> None:
    """Run the command line; leave with its exit code."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # so that errors come to us, not to the screen
    try:
        _composed()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        print(f"Nothing was started.\n{in_users_words(str(error))}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)


@hydra.main(version_base="1.3", config_path=str(config_folder()), config_name=CONFIG_NAME)
def _composed(config: DictConfig) -> None:
    """One run: without `-m`, or as a job of one of Hydra's own launchers."""
    if multiprocessing.get_start_method(allow_none=True) == "loky":  # joblib's; unknown to workers
        multiprocessing.set_start_method("forkserver", force=True)
    from sweeper.launch.local import run_here  # --help should not wait
    from sweeper.launch.slots import this_machine
    from sweeper.sweep import run_sweep

    launcher = HydraConfig.get().launcher
    machine = this_machine(
        jobs=launcher.get("jobs", 1), runs_per_gpu=launcher.get("runs_per_gpu", 1)
    )
    settings = plain(config)
    code = run_sweep([settings], settings, lambda tasks, ledger: run_here(tasks, ledger, machine))
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        sys.exit(code)
    if code:  # a job of Hydra's own launchers: leaving would take the jobs after it down
        msg = f"the run has no result, see {settings['results']}"
        raise RuntimeError(msg)
