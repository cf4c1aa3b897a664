"""What can be typed after `sweeper`: run a sweep, plan, status, doctor, compact, equivalence."""
