"""torchmd-net: TensorNet with the settings of its example, on made-up molecules."""

import torch
from torch_geometric.data import Data
from torchmdnet.data import DataModule
from torchmdnet.module import LNNP

SETTINGS = {
    "activation": "silu",
    "aggr": "add",
    "atom_filter": -1,
    "cutoff_lower": 0.0,
    "cutoff_upper": 5.0,
    "derivative": False,
    "ema_alpha_neg_dy": 1.0,
    "ema_alpha_y": 1.0,
    "embedding_dimension": 8,
    "equivariance_invariance_group": "O(3)",
    "inference_batch_size": 8,
    "load_model": None,
    "log_dir": ".",
    "lr": 0.001,
    "lr_factor": 0.8,
    "lr_min": 1e-7,
    "lr_patience": 15,
    "lr_warmup_steps": 10,
    "max_num_neighbors": 64,
    "max_z": 10,
    "model": "tensornet",
    "neg_dy_weight": 0.0,
    "num_layers": 1,
    "num_rbf": 8,
    "num_workers": 0,
    "output_model": "Scalar",
    "precision": 32,
    "prior_model": None,
    "rbf_type": "expnorm",
    "reduce_op": "add",
    "remove_ref_energy": False,
    "seed": 1,
    "splits": None,
    "standardize": False,
    "test_interval": -1,
    "test_size": 0,
    "train_size": 64,
    "trainable_rbf": False,
    "val_size": 16,
    "weight_decay": 0.0,
    "y_weight": 1.0,
}


class Molecules(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(int(i))
        pos = torch.randn(3 + i % 4, 3, generator=draw)
        return Data(z=1 + torch.arange(len(pos)) % 3, pos=pos, y=pos.norm().reshape(1, 1))


def data(batch_size=8):
    return DataModule({**SETTINGS, "batch_size": batch_size}, Molecules())


def model():
    return LNNP(dict(SETTINGS))
