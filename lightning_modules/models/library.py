"""Models of torchvision and timm by name, fitted to the data set's images and classes."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn
from torchvision.models import get_model
from torchvision.models.resnet import ResNet

from sweeper.spec.values import NotNegative

_SMALL = 64  # images of up to this height are small [pixels]


def torchvision_model(
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    name: str,
    stem: Literal["auto", "imagenet", "small"],
    head_std: NotNegative | None,
    settings: Mapping[str, Any],
) -> nn.Module:
    """A torchvision model with new weights.

    `input_shape` is channels, height, width. `stem` is how a ResNet begins: imagenet (7x7
    convolution of stride 2, pooling), small (3x3 of stride 1, no pooling), or auto: small for
    images of up to 64 pixels. `head_std` is the standard deviation of its initial last layer (0.01
    in Goyal et al. 2017); None: torchvision's own. `settings` are further arguments of the model,
    such as width_per_group. ValueError if there is no such model, or it does not fit the images.
    """
    channels, height, _ = input_shape
    image_size = {"image_size": height} if name.startswith("vit_") else {}
    model = get_model(name, num_classes=num_classes, **image_size, **settings)
    if stem == "small" or (stem == "auto" and height <= _SMALL and isinstance(model, ResNet)):
        # keep a small image's resolution: 3x3 convolution of stride 1, no pooling
        resnet = _check_resnet(model, name, "model.stem=small")
        first = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
        resnet.conv1 = first
        resnet.maxpool = nn.Identity()  # type: ignore[assignment]
    elif channels != 3:
        _replace_first_convolution(model, channels)
    if head_std is not None:
        nn.init.normal_(_check_resnet(model, name, "model.head_std").fc.weight, std=head_std)
    return model


def timm_model(
    input_shape: tuple[int, int, int], num_classes: int, *, name: str, settings: Mapping[str, Any]
) -> nn.Module:
    """A timm model with new weights; needs the package timm.

    `input_shape` is channels, height, width. `settings` are further arguments of the model, such as
    img_size or patch_size. Planning has refused names that timm lacks, and its absence.
    """
    import timm  # optional

    return timm.create_model(name, num_classes=num_classes, in_chans=input_shape[0], **settings)


def _replace_first_convolution(model: nn.Module, channels: int) -> None:
    """Replace the first convolution, so that it takes this many channels."""
    path, first = next((p, m) for p, m in model.named_modules() if isinstance(m, nn.Conv2d))
    parent, _, attribute = path.rpartition(".")
    taken: Any = nn.Conv2d(
        channels,
        first.out_channels,
        kernel_size=first.kernel_size,  # type: ignore[arg-type]
        stride=first.stride,  # type: ignore[arg-type]
        padding=first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    nn.init.kaiming_normal_(taken.weight, mode="fan_out", nonlinearity="relu")
    setattr(model.get_submodule(parent), attribute, taken)


def _check_resnet(model: nn.Module, name: str, setting: str) -> ResNet:
    if not isinstance(model, ResNet):
        msg = f"{setting} is for ResNets; got model.name={name}. Remove the setting."
        raise ValueError(msg)
    return model
