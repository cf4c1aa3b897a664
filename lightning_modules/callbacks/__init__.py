"""Lightning callbacks, each with a single concern."""
