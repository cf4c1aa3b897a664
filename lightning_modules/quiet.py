"""Lightning, without what it says at each start."""

import logging
import warnings


def quieten() -> None:
    """Silence what Lightning says at each start; errors still speak."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch")
