"""The settings of hydra/launcher=slurm."""

import pytest
from omegaconf import OmegaConf

from sweeper import CONFIG_FOLDER


@pytest.fixture
def settings():
    """The keys of the preset, some of them changed."""
    known = OmegaConf.to_container(OmegaConf.load(CONFIG_FOLDER / "hydra/launcher/slurm.yaml"))
    del known["_target_"]
    return lambda **changes: known | changes
