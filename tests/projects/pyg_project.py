"""PyG: its LightningDataset with a graph convolution."""

import pytorch_lightning as pl
import torch
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningDataset
from torch_geometric.nn import GCNConv, global_mean_pool


def data(batch_size=8):
    graphs = [
        Data(
            x=torch.full((3 + i % 4, 2), i / 50),
            edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]),
            y=torch.tensor([i / 50]),
        )
        for i in range(120)
    ]
    return LightningDataset(graphs[:96], graphs[96:], batch_size=batch_size, pin_memory=False)


class Graphs(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv, self.head = GCNConv(2, 8), torch.nn.Linear(8, 1)

    def loss(self, batch):
        nodes = self.conv(batch.x, batch.edge_index).relu()
        return (self.head(global_mean_pool(nodes, batch.batch))[:, 0] - batch.y).square().mean()

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), batch_size=batch.num_graphs)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
