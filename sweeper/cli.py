"""The command `python -m sweeper`: Hydra composes, the sweep runs."""

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from sweeper.compose import CONFIG_NAME, plain


def config_folder() -> str:
    """The folder of all defaults: in the checkout, or beside the installed package."""
    installed = Path(__file__).parent / "conf"
    return str(installed if installed.is_dir() else Path(__file__).parents[1] / "conf")


@hydra.main(version_base="1.3", config_path=config_folder(), config_name=CONFIG_NAME)
def main(config: DictConfig) -> None:
    """One run: without `-m`, or as a job of one of Hydra's own launchers."""
    from sweeper.launch.local import run_here  # noqa: PLC0415  --help should not wait
    from sweeper.sweep import run_sweep  # noqa: PLC0415

    jobs = HydraConfig.get().launcher.get("jobs", 1)
    code = run_sweep(
        [plain(config)],
        Path(config.results),
        lambda specs, ledger: run_here(specs, ledger, jobs=jobs),
    )
    sys.exit(code)
