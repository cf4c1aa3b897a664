"""The small residual networks of CIFAR-10: ResNet-8, ResNet-20 and their like."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional


class SmallResNet(nn.Module):
    """Three or so stages of residual blocks on small images, 6 n + 2 layers for n blocks a stage.

    Differs from the paper: shortcuts that change the shape are 1x1 convolutions with BatchNorm, as
    in ResNet-50, and the first convolution may halve the image for speed.

    Args:
        input_shape: channels, height, width of an image.
        num_classes: classes to tell apart [count].
        name: what tables call it.
        blocks: residual blocks of each stage [count].
        channels: of each stage; each but the first halves height and width [count].
        stem_stride: of the first convolution; 2 halves the image, for a quarter of the work.
        zero_init_residual: whether the last BatchNorm of each block starts at zero, so that blocks
            start as identities (Goyal et al. 2017, section 5.1).

    Source:
        He et al. 2015, arXiv:1512.03385, section 4.2.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        name: str,
        blocks: int,
        channels: Sequence[int],
        stem_stride: int,
        zero_init_residual: bool,
    ) -> None:
        super().__init__()
        del name
        self.stem = nn.Sequential(
            _convolution(input_shape[0], channels[0], stride=stem_stride),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(inplace=True),
        )
        layers: list[nn.Module] = []
        before = channels[0]
        for stage, after in enumerate(channels):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(_Block(before, after, stride=stride))
                before = after
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(before, num_classes)
        self._initialise(zero_init_residual=zero_init_residual)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (n, num_classes), of images, shape (n, channels, height, width)."""
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))

    def _initialise(self, *, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, _Block) and zero_init_residual:
                nn.init.zeros_(module.last_norm.weight)


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.first = _convolution(before, after, stride=stride)
        self.first_norm = nn.BatchNorm2d(after)
        self.last = _convolution(after, after, stride=1)
        self.last_norm = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(after),
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, shape (n, after, height / stride, width / stride)."""
        inner = functional.relu(self.first_norm(self.first(x)), inplace=True)
        inner = self.last_norm(self.last(inner))
        return functional.relu(inner + self.shortcut(x), inplace=True)


def _convolution(before: int, after: int, *, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
