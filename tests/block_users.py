"""Modules with repeated blocks, some of which a user recomputes in the backward pass."""

from torch import nn
from torch.utils.checkpoint import checkpoint
from users import Module


class Block(nn.Module):
    """Calls one dropout layer twice, as Swin does; its first mask would not fit its second."""

    def __init__(self, width, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.3)

    def once(self, x):
        x = x + self.drop(self.first(x).tanh())
        return x + self.drop(self.second(x))

    def forward(self, x):
        if self.reentrant is None:
            return self.once(x)
        return checkpoint(self.once, x, use_reentrant=self.reentrant)


class BlockModule(Module):
    """Three blocks, recomputed or not."""

    def __init__(self, width=8, lr=0.05, reentrant=None):
        super().__init__(width, lr)
        blocks = [Block(width, reentrant) for _ in range(3)]
        self.body = nn.Sequential(nn.Linear(4, width), nn.Sequential(*blocks))


class SharingModule(BlockModule):
    """All blocks share a dropout layer."""

    def __init__(self, reentrant=None):
        super().__init__(reentrant=reentrant)
        for block in self.body[1]:
            block.drop = self.body[1][0].drop


class DroppedBlocks(nn.Module):
    """A network of blocks with dropout, for our classifier."""

    def __init__(self, num_classes, width=16):
        super().__init__()
        self.tokens = nn.Embedding(num_classes, width)
        self.blocks = nn.ModuleList(Block(width, None) for _ in range(3))
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens):
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)
