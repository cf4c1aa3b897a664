"""nequip: its tutorial's model and data module, on a file of four argon atoms in made-up places."""

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.lj import LennardJones
from ase.io import write
from nequip.data.datamodule import ASEDataModule
from nequip.train import EMALightningModule
from nequip.utils.global_state import set_global_state

set_global_state()  # it seeds, which at an import does no harm
METRICS = {"_target_": "nequip.train.EnergyForceMetrics"}
COEFFS = {"total_energy": 1.0, "forces": 1.0}


def frames(number, seed):
    rng, corners = np.random.default_rng(seed), 2.5 * np.array([*np.ndindex(2, 2, 1)])
    for _ in range(number):
        atoms = Atoms("Ar4", corners + rng.normal(0, 0.2, (4, 3)))
        atoms.calc = LennardJones(epsilon=0.1, sigma=2.2)
        atoms.get_forces()
        yield atoms


def data(batch_size=4):
    for seed, (name, number) in enumerate({"train": 64, "val": 16}.items()):
        if not Path(f"{name}.xyz").exists():
            write(f"{name}.xyz", list(frames(number, seed)))
    return ASEDataModule(
        seed=0,
        train_file_path="train.xyz",
        val_file_path="val.xyz",
        transforms=[
            {
                "_target_": "nequip.data.transforms.ChemicalSpeciesToAtomTypeMapper",
                "model_type_names": ["Ar"],
            },
            {"_target_": "nequip.data.transforms.NeighborListTransform", "r_max": 4.0},
        ],
        train_dataloader={"batch_size": batch_size, "shuffle": True},
        val_dataloader={"batch_size": 8},
    )


def model(seed):
    net = {
        "_target_": "nequip.model.NequIPGNNModel",
        "seed": seed,
        "model_dtype": "float32",
        "type_names": ["Ar"],
        "r_max": 4.0,
        "num_layers": 2,
        "l_max": 1,
        "num_features": 4,
        "radial_mlp_width": 8,
        "avg_num_neighbors": 3.0,
        "compile_mode": "eager",
    }
    module = EMALightningModule(
        model=net,
        num_datasets={"train": 1, "val": 1, "test": 0, "predict": 0},
        optimizer={"_target_": "torch.optim.Adam", "lr": 0.01},
        loss={"_target_": "nequip.train.EnergyForceLoss", "coeffs": COEFFS},
        val_metrics=METRICS,
        train_metrics=METRICS,
    )
    for metric in module.loss.values():  # ranks' gradients are averaged, so each has its own loss
        metric.dist_sync_on_step = False
    return module
