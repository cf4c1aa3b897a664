"""Time of the gradient exchange: all-reduce by NCCL's own model, overlapped with the backward pass.

Pure: no clock, no disk. Bandwidths are in GB/s = 1,000 bytes per microsecond.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from sweeper.spec.comm_hooks import AllReduce, Hierarchical, PostLocalSGD, PowerSGD
from sweeper.spec.config import RunConfig
from sweeper.spec.hardware import Hardware

Algorithm = Literal["ring", "tree", "hierarchical"]

#: NCCL's protocols, in the order of its tables.
_LL, _LL128, _SIMPLE = range(3)
#: Base latency of a collective, by protocol [us].
_BASE_US = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
#: Latency of one hop, by protocol [us].
_HOP_US = {
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("pci", "tree"): (1.0, 1.9, 4.0),
    ("pci", "ring"): (1.0, 2.5, 5.7),
    ("network", "tree"): (5.0, 8.5, 14.0),
    ("network", "ring"): (2.7, 4.0, 14.0),
}
#: Highest bandwidth of protocol LL: within a node by compute capability, between nodes [GB/s].
_LL_MOST = {70: 39.0, 80: 87.7, 90: 141.0}
_LL_MOST_BETWEEN = 20.4
#: A rank's slice, over 16 channels, above which a ring's latency is on its plateau [bytes].
_PLATEAU_BYTES = 16 * 64
#: Fraction of a tree's bandwidth reached at 64 B, 128 B, ... 256 MiB, by protocol.
_TREE_SHARES = (
    (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1),
    (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9),
)  # fmt: skip
#: Size of a gradient element in transit, for hooks that compress it [bytes].
_HALVED = {"bf16": 2, "fp16": 2}
_MIB = 2**20
#: Fraction of a micro-batch's time in the backward pass, which has twice the forward arithmetic.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True, slots=True)
class Places:
    """Ranks and the nodes that they occupy.

    Attributes:
        ranks: total number of ranks [count].
        per_node: devices of a node [count].
    """

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        """Nodes that have at least one rank [count]."""
        return -(-self.ranks // self.per_node)

    @property
    def in_node(self) -> int:
        """Ranks in each node [count]."""
        return min(self.ranks, self.per_node)


def all_reduce_s(
    num_bytes: float, places: Places, hardware: Hardware, algorithm: Algorithm | None = None
) -> float:
    """Time of one all-reduce [seconds].

    Args:
        num_bytes: size of each rank's gradients [bytes].
        places: the ranks and their nodes.
        hardware: of the cluster.
        algorithm: None for the faster of ring and tree, as NCCL chooses.

    Source:
        NCCL 2.30, src/graph/tuning.cc: `t = latency + bytes / bandwidth` with its constants, for
        the fastest of its protocols. Left out: caps per channel, NVLS, CollNet (SHARP).
        Hierarchical is not from NCCL: a ring in each node, and one between nodes for each device.
    """
    if places.ranks == 1:
        return 0.0
    if hardware.hop_us is not None:
        steps = 2 * (places.ranks - 1)
        return steps * _measured_us(num_bytes / places.ranks, hardware.hop_us) / 1e6
    by_name = {"ring": _ring_us, "tree": _tree_us, "hierarchical": _hierarchical_us}
    names = [algorithm] if algorithm else ["ring", "tree"]
    return min(by_name[name](num_bytes, places, hardware) for name in names) / 1e6


def _measured_us(num_bytes: float, pairs: Sequence[Sequence[float]]) -> float:
    """Interpolate linearly between measured sizes; beyond the largest, extend the last segment."""
    i = next((i for i in range(1, len(pairs) - 1) if num_bytes < pairs[i][0]), len(pairs) - 1)
    (size, less_us), (larger, more_us) = pairs[i - 1], pairs[i]
    share = max(0.0, (num_bytes - size) / (larger - size))
    return less_us + share * (more_us - less_us)


def _ring_us(num_bytes: float, places: Places, hardware: Hardware) -> float:
    steps, between = 2 * (places.ranks - 1), 2 * (places.nodes - 1)
    in_node = _HOP_US[hardware.link, "ring"]
    network = _HOP_US["network", "tree" if places.in_node == 1 else "ring"]
    bus = _bus(places, hardware)
    buses = (min(_most_ll(places, hardware), bus / 2), 0.92 * bus, bus)

    def time_us(protocol: int) -> float:
        hops = (steps - between) * in_node[protocol] + between * network[protocol]
        latency = _BASE_US["ring"][protocol] + hops
        is_long = num_bytes >= _PLATEAU_BYTES * places.ranks
        if protocol == _SIMPLE and places.nodes > 1 and is_long:
            latency *= 1.9 if hardware.compute_capability < 80 else 1.4
        return latency + num_bytes / (1000 * buses[protocol] * places.ranks / steps)

    return min(map(time_us, _protocols(hardware)))


def _tree_us(num_bytes: float, places: Places, hardware: Hardware) -> float:
    in_node, network = _HOP_US[hardware.link, "tree"], _HOP_US["network", "tree"]
    bus = 0.92 * _bus(places, hardware)
    share = 7 / 9 if places.nodes == 1 else 120 / 128
    buses = (min(bus / 3.8, _most_ll(places, hardware)), share * bus, bus)
    size = max(0, int(math.log2(max(1.0, num_bytes / 64))))

    def time_us(protocol: int) -> float:
        depth = int(math.log2(places.nodes))
        hops = (places.in_node - 1) * in_node[protocol] + depth * network[protocol]
        shares = _TREE_SHARES[protocol]
        bandwidth = buses[protocol] / 2 * (shares[size] if size < len(shares) else 1)
        return _BASE_US["tree"][protocol] + 2 * hops + num_bytes / (1000 * bandwidth)

    return min(map(time_us, _protocols(hardware)))


def _hierarchical_us(num_bytes: float, places: Places, hardware: Hardware) -> float:
    """A ring in each node, half of it before and half after rings between nodes, one per device."""
    node = Places(places.in_node, places.in_node)
    in_node = _ring_us(num_bytes, node, hardware) if node.ranks > 1 else 0.0
    if places.nodes == 1:
        return in_node
    rail = hardware.model_copy(
        update={"network_gb_per_s": hardware.network_gb_per_s / places.in_node}
    )
    return in_node + _ring_us(num_bytes / places.in_node, Places(places.nodes, 1), rail)


def _bus(places: Places, hardware: Hardware) -> float:
    if places.nodes == 1:
        return hardware.node_gb_per_s
    network = hardware.network_gb_per_s
    return network if places.in_node == 1 else min(hardware.node_gb_per_s, network)


def _most_ll(places: Places, hardware: Hardware) -> float:
    if places.nodes > 1:
        return _LL_MOST_BETWEEN
    return _LL_MOST[max(c for c in _LL_MOST if c <= max(70, hardware.compute_capability))]


def _protocols(hardware: Hardware) -> tuple[int, ...]:
    return (_LL, _LL128, _SIMPLE) if hardware.link == "nvlink" else (_LL, _SIMPLE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Time of a step's gradient exchange.

    Attributes:
        total_s: time of all its buckets, one after the other [seconds].
        exposed_s: how long it continues after the backward pass [seconds].
    """

    total_s: float
    exposed_s: float


def exchange(
    num_bytes: float, bucket_bytes: float, backward_s: float, time_s: Callable[[float], float]
) -> Exchange:
    """Time to exchange a step's gradients in buckets, as they become ready in the backward pass.

    A bucket is ready when the backward pass has produced its share of the bytes, and its exchange
    begins when that of the previous bucket has ended. With gradient accumulation only the last
    micro-batch's backward pass counts, since a step has one exchange.

    Args:
        num_bytes: size of all gradients [bytes].
        bucket_bytes: size of a bucket; one as large as all gradients hides nothing [bytes].
        backward_s: backward pass of the last micro-batch [seconds].
        time_s: gives the time to all-reduce a number of bytes [bytes -> seconds].
    """
    sizes = list(_buckets(num_bytes, bucket_bytes))
    times = [time_s(size) for size in sizes]
    ended = 0.0
    for ready, time in zip(accumulate(sizes), times, strict=True):
        ended = max(ended, backward_s * ready / num_bytes) + time
    return Exchange(total_s=sum(times), exposed_s=max(0.0, ended - backward_s))


def _buckets(num_bytes: float, bucket_bytes: float) -> Iterator[float]:
    whole = int(num_bytes // bucket_bytes)
    yield from [bucket_bytes] * whole
    if (rest := num_bytes - whole * bucket_bytes) > 0:
        yield rest


def exposed_s(config: RunConfig, num_parameters: int, micro_s: float) -> float:
    """The part of a step's exchange that the backward pass does not hide [seconds].

    0 if it is not known: without `hardware`, and with methods that exchange gradients differently.

    Args:
        config: of the run.
        num_parameters: trainable parameters [count].
        micro_s: time of a micro-batch, forward and backward [seconds].
    """
    hook, hardware = config.comm_hook, config.hardware
    ranks = config.world_size
    is_other = bool(config.reproducible) or isinstance(hook, PostLocalSGD | PowerSGD)
    if hardware is None or ranks == 1 or is_other:
        return 0.0
    of_each = _HALVED.get(hook.name, 8 if config.precision == "64-true" else 4)
    algorithm: Algorithm | None = hook.nccl_algo if isinstance(hook, AllReduce) else None
    if isinstance(hook, Hierarchical):
        algorithm = "hierarchical"
    places = Places(ranks, config.devices)
    return exchange(
        num_parameters * of_each,
        hardware.bucket_mib * _MIB,
        BACKWARD_SHARE * micro_s,
        lambda part: all_reduce_s(part, places, hardware, algorithm),
    ).exposed_s
