"""The small residual networks of CIFAR-10: ResNet-8, ResNet-20 and their like."""

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from sweeper.spec.values import Count


class SmallResNet(nn.Module):
    """Stages of residual blocks for small images: 6 n + 2 layers for three stages of n blocks.

    Differs from the paper: shortcuts that change the shape are 1x1 convolutions with BatchNorm, as
    in ResNet-50, and the first convolution may halve the image for speed.

    `input_shape` is channels, height, width; `blocks` are per stage; each stage but the first
    halves height and width. The name is for tables only.

    Source:
        He et al. 2015, arXiv:1512.03385, section 4.2.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        name: str,
        blocks: Count,
        channels: Sequence[Count],
        stem_stride: Count,
    ) -> None:
        super().__init__()
        del name
        self.stem = nn.Sequential(
            nn.Conv2d(input_shape[0], channels[0], 3, stride=stem_stride, padding=1, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(inplace=True),
        )
        layers: list[nn.Module] = []
        before = channels[0]
        for stage, after in enumerate(channels):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                shortcut = None
                if stride > 1 or before != after:
                    shortcut = nn.Sequential(
                        nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False),
                        nn.BatchNorm2d(after),
                    )
                layers.append(BasicBlock(before, after, stride=stride, downsample=shortcut))
                before = after
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(before, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (n, num_classes), of images, shape (n, channels, height, width)."""
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
