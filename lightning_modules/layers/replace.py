"""Replaces layers of a model, under every name that they have in it."""

from collections.abc import Callable

from torch import nn


def replace_layers(
    model: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]
) -> nn.Module:
    """Replace each layer for which there is a replacement, once, in place where possible.

    A layer that has several names, or that several parts share, is still one layer afterwards. For
    a model that is itself such a layer, the new one is returned.
    """
    made: dict[nn.Module, nn.Module | None] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer not in made:
            made[layer] = new = replacement(layer)
            if new is not None:
                new.train(layer.training)  # a frozen part is in evaluation
        if (new := made[layer]) is None:
            continue
        if not name:
            return new
        model.set_submodule(name, new)
    return model
