"""Sums in an order that is fixed by the step, not by which rank has computed what."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

#: A range of leaves: the first, and the leaf after the last.
Node = tuple[int, int]


class TreeSum:
    """Adds up lists of tensors in a fixed binary tree, in whatever order they come.

    The tree halves the leaves until single leaves are left. Only sums that wait for their sibling
    are kept: of `n` leaves that are added in order, at most ``log2(n) + 1``.

    `partial` has the sums so far: just the root once all leaves have been added.
    """

    def __init__(self, num_leaves: int) -> None:
        self.partial: dict[Node, list[Tensor]] = {}
        self._above = _find_parents((0, num_leaves))

    def add(self, node: Node, tensors: list[Tensor]) -> None:
        """Add the sum of a node, or of a leaf ``(i, i + 1)``; the tensors may be overwritten."""
        while node in self._above:
            parent, sibling = self._above[node]
            if sibling not in self.partial:
                break
            other = self.partial.pop(sibling)
            for total, tensor in zip(other, tensors, strict=True):
                total.add_(tensor)  # a + b is b + a to the last bit
            node, tensors = parent, other
        self.partial[node] = tensors


def rank_nodes(leaves_of_ranks: Sequence[range]) -> list[list[Node]]:
    """The sums that each rank is left with when it has added all its leaves, in ascending order.

    A single sum each if the number of ranks is a power of two, and all have equally many,
    consecutive leaves.
    """
    held: list[list[Node]] = []
    for leaves in leaves_of_ranks:
        total = TreeSum(sum(map(len, leaves_of_ranks)))
        for leaf in leaves:
            total.add((leaf, leaf + 1), [torch.zeros(0)])
        held.append(sorted(total.partial))
    return held


def sum_over_ranks(
    partial: dict[Node, list[Tensor]], held: Sequence[Sequence[Node]], rank: int
) -> list[Tensor]:
    """The root of the tree, bitwise identical on every rank.

    Each rank receives a slice of all ranks' sums, adds it up and sends the result to all: about
    the traffic of an all-reduce if each rank holds a single sum.

    `partial` are this rank's sums; `held` says which nodes each rank has.
    """
    if len(held) == 1:
        (root,) = partial.values()
        return root
    shapes = [tensor.shape for tensor in next(iter(partial.values()))]
    size = sum(shape.numel() for shape in shapes)
    part = -(-size // len(held))
    first = next(iter(partial.values()))[0]
    sent = first.new_zeros(len(held), max(map(len, held)), part)
    for index, node in enumerate(held[rank]):
        flat = torch.cat([tensor.reshape(-1) for tensor in partial.pop(node)])
        sent[:, index] = functional.pad(flat, (0, sent.shape[0] * part - size)).view(-1, part)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    total = TreeSum(max(end for nodes in held for _, end in nodes))
    for nodes, sums in zip(held, received, strict=True):
        for node, tensor in zip(nodes, sums, strict=False):  # ranks with fewer sums are padded
            total.add(node, [tensor])
    ((root_part,),) = total.partial.values()
    whole = sent.new_empty(len(held) * part)
    dist.all_gather(list(whole.split(part)), root_part)
    parts = whole[:size].split([shape.numel() for shape in shapes])
    return [flat.view(shape) for flat, shape in zip(parts, shapes, strict=True)]


def _find_parents(root: Node) -> dict[Node, tuple[Node, Node]]:
    """Parent and sibling of every node but the root."""
    above: dict[Node, tuple[Node, Node]] = {}
    waiting = [root]
    while waiting:
        start, end = parent = waiting.pop()
        if end - start > 1:
            middle = (start + end) // 2
            left, right = (start, middle), (middle, end)
            above |= {left: (parent, right), right: (parent, left)}
            waiting += [left, right]
    return above
