"""How curved the loss of a run is, at the weights of a checkpoint."""
