"""Short runs in processes of their own: the memory that a run takes, and what would fail it."""
