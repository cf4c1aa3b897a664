"""Decides what to run and where, and remembers what came of it. Never imports torch."""
