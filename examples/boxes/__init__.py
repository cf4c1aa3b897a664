"""A detector in the manner of torchvision's: lists of images, lists of targets, a loss per box.

The images differ in size and show one to four rectangles on noise, drawn as they are fetched from
the index alone. A batch is `(images, targets)`: a list of tensors and a list of dictionaries with
`boxes`, so nothing in it can be cut along a first dimension.
The loss is summed over the batch and divided by its number of *boxes*, as DETR and RetinaNet do,
so images do not weigh the same.

    L.Trainer(max_epochs=10).fit(BoxModule(), BoxDataModule(batch_size=16))
"""

from .data import BoxDataModule
from .module import BoxModule

__all__ = ["BoxDataModule", "BoxModule"]
