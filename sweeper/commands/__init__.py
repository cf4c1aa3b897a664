"""The commands of `sweeper`: sweep, plan, status, doctor, compact, equivalence."""
