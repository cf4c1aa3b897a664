"""Residual blocks that begin as identities."""

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck


def zero_last_norms(model: nn.Module) -> None:
    """Set the scale of the last norm of every residual block to zero, in place.

    Blocks are torchvision's, and all modules with a method `zero_init_last`, such as timm's.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 5.1.

    Raises:
        ValueError: if the model has no such block.
    """
    found = False
    for module in model.modules():
        if isinstance(module, Bottleneck):
            _zero_scale(module.bn3)
        elif isinstance(module, BasicBlock):
            _zero_scale(module.bn2)
        elif callable(zero := getattr(module, "zero_init_last", None)):
            zero()
        else:
            continue
        found = True
    if not found:
        msg = (
            "zero_init_last_norm needs a model with residual blocks; "
            f"got {type(model).__name__}. Remove zero_init_last_norm, or give the blocks a method "
            "zero_init_last."
        )
        raise ValueError(msg)


def _zero_scale(norm: nn.Module) -> None:
    assert isinstance(norm.weight, nn.Parameter)
    nn.init.zeros_(norm.weight)
