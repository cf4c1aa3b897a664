"""Runs on the machines that torchrun leads."""
