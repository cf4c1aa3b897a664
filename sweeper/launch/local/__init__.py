"""Runs on this machine, from a warm fork server."""
