"""What is trained on in trial steps: a few items of a user's data set, in batches of any size."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from torch.utils.data import DataLoader

WINDOW = 4  # examples of a micro-batch: for two halves, and for one and the rest
STEPS = 100  # that schedulers see


class Once:
    """Items as they were when they were asked for first, since a data set may draw as it likes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._seen: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self._seen:
            self._seen[index] = self._dataset[index]
        return deepcopy(self._seen[index])  # collate functions may change what they are given


class TrialBatches:
    """Promises more batches than it has, since the last pass ends it all."""

    def __init__(self, loader: "DataLoader[Any]", batches: Callable[[], Iterator[Any]]) -> None:
        self.dataset, self.batch_size = loader.dataset, WINDOW  # a module may ask for them
        self._batches = batches

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Any]:
        return self._batches()
