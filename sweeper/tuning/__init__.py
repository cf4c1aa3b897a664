"""Tuning at every point of a grid: an independent Optuna study each, with equal budgets."""
