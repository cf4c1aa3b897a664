"""darts: NBEATS on made-up sines, with the network, windows and loaders of its own fit."""

import numpy as np
from darts import TimeSeries
from darts.models import NBEATSModel


def prepare(batch_size=32):
    """What its fit passes to Trainer.fit, which is called by none of its public functions alone."""
    steps, shops = np.arange(60), range(4)
    sines = [np.sin(steps / (2 + shop)).astype("float32") for shop in shops]
    net = NBEATSModel(12, 4, num_stacks=2, num_layers=2, layer_widths=16, batch_size=batch_size)
    _, prepared = net._setup_for_fit_from_dataset(
        [TimeSeries.from_values(sine[:48]) for sine in sines],
        val_series=[TimeSeries.from_values(sine[40:]) for sine in sines],
    )
    return net._setup_for_train(**prepared)


def data(batch_size=32):
    return prepare(batch_size)["datamodule"]


def model():
    return prepare()["model"]
