"""The demo grid as Ray Tune runs it, with the LightningModule of peers_lightning.py.

python benchmarks/peers_ray.py EPOCHS FOLDER
"""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import ray
from omegaconf import OmegaConf
from ray import tune


def main(epochs: int, folder: str) -> None:
    def trial(point: dict[str, int]) -> None:
        from peers_lightning import train

        train(OmegaConf.create({**point, "epochs": epochs, "base_lr": 0.025}), Path.cwd())

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={
            "batch": tune.grid_search([3840, 30_720]),
            "warmup": tune.grid_search([0, 5, 10, 20]),
        },
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    assert not tuner.fit().errors


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
