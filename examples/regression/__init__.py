"""A regression with metrics of its own: R2, which is best when largest, and the RMSE.

The data are Friedman's first function, `10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5`, with
noise of standard deviation 1 and five inputs that do not matter: 2,560 examples to train on and
512 to validate. No network can explain more than R2 = 0.96 of it.
The network has no BatchNorm and no dropout.

    pl.Trainer(max_epochs=20).fit(FriedmanModule(), FriedmanDataModule(batch_size=64))

Source: Friedman 1991, Annals of Statistics 19(1), as `sklearn.datasets.make_friedman1`.
"""

from .data import FriedmanDataModule
from .module import FriedmanModule

__all__ = ["FriedmanDataModule", "FriedmanModule"]
