"""Our sweepers and launchers, where Hydra looks for them; the work is in sweeper/."""
