"""Estimators with intervals: frames in, estimates out. Nothing here draws or reads files."""
