"""Output of a sweep in the terminal."""
