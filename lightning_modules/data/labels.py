"""Checks on labels: within range, and no class without an example."""

import numpy as np
import numpy.typing as npt

_SHOWN = 10


def check_labels(labels: npt.NDArray[np.int64], *, num_classes: int, where: str) -> None:
    """Refuse labels, shape (n,), outside of 0 to num_classes - 1.

    Raises:
        ValueError: naming the place, the first wrong row and its label.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        msg = (
            f"labels must be 0 to {num_classes - 1}; {where} has label {labels[wrong[0]]} in row "
            f"{wrong[0]} ({len(wrong)} wrong in all). Correct the file or data.num_classes."
        )
        raise ValueError(msg)


def check_all_classes(labels: npt.NDArray[np.int64], *, num_classes: int, where: str) -> None:
    """Refuse a training set in which a class has no example.

    Raises:
        ValueError: naming the place and the classes.
    """
    missing = np.setdiff1d(np.arange(num_classes), labels)
    if len(missing):
        shown = ", ".join(map(str, missing[:_SHOWN])) + (" ..." if len(missing) > _SHOWN else "")
        msg = (
            f"every class must have training examples; {where} has none of {len(missing)} of "
            f"{num_classes} classes: {shown}. Complete the data or correct data.num_classes."
        )
        raise ValueError(msg)


def check_count(key: str, stated: int, found: int, where: str) -> None:
    """Refuse a split whose size is not the one that the config states.

    Raises:
        ValueError: with both numbers.
    """
    if stated != found:
        msg = (
            f"data.{key} must be the size of the data set; got {stated}, {where} holds {found}. "
            f"Set data.{key}={found} if this is the data you mean."
        )
        raise ValueError(msg)
