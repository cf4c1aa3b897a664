"""pytorch-forecasting: 40 made-up series of 30 days, and its decoder MLP made from the data set."""

from functools import cache

import lightning
import numpy as np
import pandas as pd
from pytorch_forecasting import DecoderMLP, TimeSeriesDataSet


@cache
def series():
    rng, days = np.random.default_rng(0), np.arange(30)
    frames = [
        pd.DataFrame({"day": days, "shop": str(shop), "sales": np.sin(days / 3 + shop) + noise})
        for shop, noise in enumerate(rng.normal(0, 0.1, (40, 30)))
    ]
    return TimeSeriesDataSet(
        pd.concat(frames, ignore_index=True),
        time_idx="day",
        target="sales",
        group_ids=["shop"],
        max_encoder_length=10,
        max_prediction_length=3,
        time_varying_known_reals=["day"],
        time_varying_unknown_reals=["sales"],
    )


class Series(lightning.LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return series().to_dataloader(train=True, batch_size=self.batch_size)

    def val_dataloader(self):
        return series().to_dataloader(train=False, batch_size=self.batch_size)


def model():
    return DecoderMLP.from_dataset(series(), hidden_size=16, n_hidden_layers=1, dropout=0.0)
