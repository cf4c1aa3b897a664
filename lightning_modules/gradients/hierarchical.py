"""Hierarchical all-reduce: within each node, between the nodes, within each node again."""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future


class Hierarchy:
    """The mean over ranks in three phases, so that one rank of each node uses the network.

    Each node's ranks sum their gradients on its first rank; the first ranks all-reduce the sums;
    each broadcasts the result within its node. One gradient per node crosses the network instead of
    one per rank. The phases of a bucket run one after another and the backward pass waits for them,
    unlike in DDP's own exchange.

    Groups are made at the first exchange, by all ranks together.

    A node's ranks are numbered consecutively; fewer ranks than `ranks_per_node` count as one node.

    Source:
        Jia et al. 2018, arXiv:1807.11205, section 4.2 (three phases; its third is the broadcast).
    """

    def __init__(self, *, ranks_per_node: int) -> None:
        self._ranks_per_node = ranks_per_node
        self._groups: tuple[Any, Any] | None = None

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """DDP's exchange of a bucket of gradients: their mean over all ranks."""
        mean = self.mean(bucket.buffer())
        future: Future[Tensor] = Future()
        future.set_result(mean)
        return future

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over ranks, in place."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if self._groups is None:
            size = min(self._ranks_per_node, world_size)
            firsts = dist.new_group([*range(0, world_size, size)])
            self._groups = dist.new_subgroups(size)[0], firsts
        node, leaders = self._groups
        leader = rank - rank % self._ranks_per_node
        tensor.div_(world_size)
        dist.reduce(tensor, dst=leader, group=node)
        if rank == leader:
            dist.all_reduce(tensor, group=leaders)
        dist.broadcast(tensor, src=leader, group=node)
        return tensor
