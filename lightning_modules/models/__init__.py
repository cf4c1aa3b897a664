"""Models, each an ordinary torch module."""
