"""The commands of `sweeper`: sweep, tune, sequential, plan, status, doctor and the others."""
