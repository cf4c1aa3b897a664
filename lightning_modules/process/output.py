"""What a process prints: to its log, without Lightning's startup messages."""

import logging
import os
import sys
import warnings
from pathlib import Path


def redirect_output(log: Path) -> None:
    """Append all that this process and its libraries print to a file."""
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def quieten() -> None:
    """Silence Lightning's startup messages, but not its errors."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch")
