"""The training examples of one of our data sets, one by one, as a user's data set gives them."""

from typing import Any

import torch
from torch.utils.data import Dataset

from lightning_modules.data.batches import Data


class Items(Dataset[Any]):
    """Inputs and label of each example of the first epoch.

    Args:
        data: any data set with our methods.
    """

    def __init__(self, data: Data) -> None:
        data.set_epoch(0, 0)
        self._data = data

    def __len__(self) -> int:
        return self._data.num_train_examples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        inputs, labels = self._data.train_examples(torch.tensor([index]))
        return inputs[0], labels[0]
