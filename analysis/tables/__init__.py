"""Tables in: load, and find comparable runs."""
