"""neuralforecast: NHITS on sines, with all windows of each series."""

import numpy as np
import pandas as pd
from neuralforecast.models import NHITS
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset


def data(batch_size=32):
    series = [
        pd.DataFrame({"unique_id": name, "ds": range(40), "y": np.sin(np.arange(40) / (1 + name))})
        for name in range(96)
    ]
    dataset, *_ = TimeSeriesDataset.from_df(pd.concat(series))
    return TimeSeriesDataModule(dataset, batch_size=batch_size)


def model(seed):
    units = [[16, 16]] * 3
    net = NHITS(h=4, input_size=8, mlp_units=units, windows_batch_size=None, random_seed=seed)
    net.val_size, net.test_size = 8, 0  # as its own fit does
    return net
