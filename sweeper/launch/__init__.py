"""Launchers: each starts the ranks of runs and reports how they ended."""
