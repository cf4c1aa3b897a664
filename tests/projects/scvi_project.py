"""scvi-tools: the variational model of counts, its own training plan and splitter."""

import numpy as np
from anndata import AnnData
from scvi.dataloaders import DataSplitter
from scvi.model import SCVI
from scvi.train import TrainingPlan


def counts():
    rng = np.random.default_rng(0)
    adata = AnnData(rng.poisson(rng.gamma(2.0, 1.0, (1, 20)), (240, 20)).astype("float32"))
    SCVI.setup_anndata(adata)
    return SCVI(adata, n_hidden=16, n_latent=4)


def plan():
    return TrainingPlan(counts().module, n_epochs_kl_warmup=2)


def data(batch_size=64):
    """Its split is drawn anew in each process unless it is in order."""
    manager = counts().adata_manager
    return DataSplitter(manager, train_size=0.8, shuffle_set_split=False, batch_size=batch_size)
