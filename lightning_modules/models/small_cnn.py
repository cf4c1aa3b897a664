"""The demo's network: small enough for two cores, with BatchNorm as in the studied ResNet-50."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sweeper.spec.values import Count


class SmallCNN(nn.Module):
    """Strided 3x3 convolutions and two dense layers, all but the last with BatchNorm.

    `input_shape` is channels, height, width. Each convolution halves height and width; `hidden` is
    the width of the first dense layer.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[Count],
        hidden: Count,
    ) -> None:
        super().__init__()
        before, height, width = input_shape
        layers: list[nn.Module] = []
        for after in channels:
            layers += [
                nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            before, height, width = after, -(-height // 2), -(-width // 2)
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(before * height * width, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (n, num_classes), of images, shape (n, channels, height, width)."""
        maps = self.features(images)
        is_trained = self.training and maps.requires_grad
        if is_trained and maps.is_contiguous(memory_format=torch.channels_last):
            # else the gradient of ReLU takes 14 times as long
            maps.register_hook(partial(Tensor.contiguous, memory_format=torch.channels_last))
        return self.head(maps.flatten(1))
