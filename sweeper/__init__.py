"""Decides what to run and where, and stores the results; never imports torch."""

from pathlib import Path

_INSTALLED = Path(__file__).parent / "conf"

#: The folder of all defaults: inside the installed package, or next to it in a checkout.
CONFIG_FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "conf"
