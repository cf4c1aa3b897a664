"""Runs on a SLURM cluster, as job arrays."""
