"""Tables in, numbers and figures out. Never imports torch."""
