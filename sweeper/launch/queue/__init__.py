"""Runs in a queue of files, which workers on any machine take."""
