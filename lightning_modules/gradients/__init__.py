"""How gradients are summed over ranks, perturbed and measured."""
