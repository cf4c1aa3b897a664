"""Lightning without its startup messages."""

import logging
import warnings


def quieten() -> None:
    """Silence Lightning's startup messages, but not its errors."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch")
