"""Runs on the machines on which torchrun started this command."""
