"""chemprop: a message passing network on chains of atoms."""

import lightning as L
from chemprop import data, featurizers, models, nn

CHAINS = ["C" * n + end + "C" * m for n in range(1, 11) for end in "ONS" for m in range(1, 11)]


class Data(L.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        points = [data.MoleculeDatapoint.from_smi(chain, [len(chain) / 10]) for chain in CHAINS]
        self.train = data.MoleculeDataset(points[:240])
        self.val = data.MoleculeDataset(points[240:])

    def train_dataloader(self):
        return data.build_dataloader(self.train, batch_size=self.batch_size)

    def val_dataloader(self):
        return data.build_dataloader(self.val, batch_size=self.batch_size, shuffle=False)


def model():
    atoms = featurizers.SimpleMoleculeMolGraphFeaturizer()
    passing = nn.BondMessagePassing(*atoms.shape, d_h=32, depth=2)
    head = nn.RegressionFFN(input_dim=32, hidden_dim=32)
    return models.MPNN(passing, nn.MeanAggregation(), head, batch_norm=False)
