"""Decides what to run and where, and keeps the results; never imports torch."""

from pathlib import Path

_INSTALLED = Path(__file__).parent / "conf"

#: The folder of all defaults: in the installed package, or beside it in the checkout.
CONFIG_FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "conf"
