"""What a run is: plain values and pure functions, no I/O."""
