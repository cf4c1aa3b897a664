"""An image project as lightning-hydra-template users have it: two losses, torchmetrics, OneCycle.

The pictures are scikit-learn's digits in random colors, 1,500 to train on and 297 to validate.
A batch is a dictionary, the training pictures are cropped and jittered as they are fetched, the
backbone learns at a tenth of the head's rate, and the second loss compares with the input.

    module, data = PhotoModule(), PhotoDataModule(batch_size=100)
    L.Trainer(max_epochs=10).fit(module, data)

`conf/` describes the same two objects for Hydra, with a partial optimizer.
"""

from .data import PhotoDataModule
from .module import PhotoModule, PhotoNet

__all__ = ["PhotoDataModule", "PhotoModule", "PhotoNet"]
