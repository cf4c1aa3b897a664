"""Time of the gradient exchange: all-reduce in closed form, overlapped with the backward pass.

Pure: no clock, no disk. Bandwidths are in GB/s = 1,000 bytes per microsecond.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from sweeper.spec.hardware import Hardware

Algorithm = Literal["ring", "tree", "hierarchical", "hybrid"]

#: Latency of a collective, and of a hop by link and algorithm [us]. These are the constants of
#: protocol LL128, by which NCCL sends gradients over NVLink (NCCL 2.30, src/graph/tuning.cc).
_BASE_US = 14.0
_RING_HOP_US = {"nvlink": 1.9, "pci": 2.5, "network": 4.0}
_TREE_HOP_US = {"nvlink": 1.25, "pci": 1.9, "network": 8.5}
#: Fraction of the bus bandwidth that a ring reaches; a tree reaches 0.84 of half of that.
_EFFICIENCY, _TREE_EFFICIENCY = 0.92, 0.92 * 0.84 / 2

#: Fraction of a micro-batch's time in the backward pass, which has twice the forward arithmetic.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True, slots=True)
class Places:
    """Ranks and the nodes that they occupy."""

    ranks: int  # total number of ranks [count]
    per_node: int  # devices of a node [count]

    @property
    def nodes(self) -> int:
        """Nodes that have a rank [count]."""
        return -(-self.ranks // self.per_node)

    @property
    def in_node(self) -> int:
        """Ranks in each node [count]."""
        return min(self.ranks, self.per_node)


def all_reduce_s(
    num_bytes: float, places: Places, hardware: Hardware, algorithm: Algorithm | None = None
) -> float:
    """Time of an all-reduce [seconds]: ``latency + hops * hop + bytes / bandwidth``.

    A ring of N ranks on M nodes has 2 (N - 1) hops, 2 (M - 1) of them through the network, and
    passes on 2 (N - 1) / N of the bytes. A tree goes up and down the devices of a node and log2(M)
    nodes. Hierarchical is a ring in each node, and another between nodes for each device of a node.
    Hybrid is the faster of hierarchical and a ring through all, at the best threshold.

    Args:
        num_bytes: size of each rank's gradients [bytes].
        places: the ranks and their nodes.
        hardware: of the cluster.
        algorithm: None for the faster of ring and tree, as NCCL chooses.

    Source:
        NCCL 2.30, src/graph/tuning.cc, for its protocol LL128. Left out: messages under 1 MiB,
        caps per channel, NVLS, CollNet (SHARP). Hierarchical is not NCCL's.
    """
    ranks, nodes, in_node = places.ranks, places.nodes, places.in_node
    if ranks == 1:
        return 0.0
    if algorithm == "hybrid":
        both: tuple[Algorithm, ...] = ("hierarchical", "ring")
        return min(all_reduce_s(num_bytes, places, hardware, each) for each in both)
    if algorithm == "hierarchical" and 1 < in_node < ranks:
        share = hardware.network_gb_per_s / in_node
        rail = hardware.model_copy(update={"network_gb_per_s": share})
        return all_reduce_s(num_bytes, Places(in_node, in_node), hardware, "ring") + all_reduce_s(
            num_bytes / in_node, Places(nodes, 1), rail, "ring"
        )
    node = hardware.node_gb_per_s if in_node > 1 else math.inf
    network = hardware.network_gb_per_s if nodes > 1 else math.inf
    bytes_per_us = 1000 * min(node, network)
    between = 2 * (nodes - 1)
    ring_us = (
        (2 * (ranks - 1) - between) * _RING_HOP_US[hardware.link]
        + between * _RING_HOP_US["network"]
        + num_bytes * 2 * (ranks - 1) / ranks / (_EFFICIENCY * bytes_per_us)
    )
    tree_us = (
        2 * (in_node - 1) * _TREE_HOP_US[hardware.link]
        + 2 * math.log2(nodes) * _TREE_HOP_US["network"]
        + num_bytes / (_TREE_EFFICIENCY * bytes_per_us)
    )
    fastest = {None: min(ring_us, tree_us), "tree": tree_us}.get(algorithm, ring_us)
    return (_BASE_US + fastest) / 1e6


class Exchange(NamedTuple):
    """Time of a step's exchange of all buckets [s], and how long it outlasts the backward pass."""

    total_s: float
    exposed_s: float


def exchange(
    num_bytes: float,
    backward_s: float,
    places: Places,
    hardware: Hardware,
    algorithm: Algorithm | None = None,
) -> Exchange:
    """Time to exchange a step's gradients in buckets, as they become ready in the backward pass.

    A bucket is ready when the backward pass has produced its share of the bytes, and its exchange
    begins when that of the previous bucket has ended. With gradient accumulation only the last
    micro-batch's backward pass counts, since a step has a single exchange.

    Args:
        num_bytes: size of all gradients [bytes].
        backward_s: backward pass of the last micro-batch [seconds].
        places: the ranks and their nodes.
        hardware: of the cluster.
        algorithm: of the all-reduce.
    """
    bucket = hardware.bucket_mib * 2**20
    whole, rest = divmod(num_bytes, bucket)
    sizes = [bucket] * int(whole) + [rest] * (rest > 0)
    times = [all_reduce_s(size, places, hardware, algorithm) for size in sizes]
    ended = 0.0
    for ready, time in zip(accumulate(sizes), times, strict=True):
        ended = max(ended, backward_s * ready / num_bytes) + time
    return Exchange(total_s=sum(times), exposed_s=max(0.0, ended - backward_s))
