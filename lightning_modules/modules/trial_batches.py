"""What is trained on in trial steps: a few items of a user's data set, in batches of any size."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from torch.utils.data import DataLoader

WINDOW = 4  # examples of a micro-batch, which is split into halves, and into one and the rest
STEPS = 100  # steps per epoch that schedulers see


class Once:
    """Items as they were when first fetched, since a data set may draw as it likes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._seen: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self._seen:
            self._seen[index] = self._dataset[index]
        return deepcopy(self._seen[index])  # collate functions may change what they are given


class TrialBatches:
    """Claims to have more batches than it has, since training ends with the last pass."""

    def __init__(self, loader: "DataLoader[Any]", batches: Callable[[], Iterator[Any]]) -> None:
        self.dataset, self.batch_size = loader.dataset, WINDOW  # a module may ask for them
        self._batches = batches

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Any]:
        return self._batches()
