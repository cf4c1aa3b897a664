"""A cluster's devices and links, as described by its preset in conf/cluster."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from sweeper.spec.values import Positive, Rule, Settings


def _ascending(pairs: list[list[float]]) -> list[list[float]]:
    sizes = [size for size, _ in pairs]
    if len(pairs) < 2 or sizes != sorted(set(sizes)):
        raise ValueError
    return pairs


_Pairs = Annotated[
    list[list[Positive]],
    AfterValidator(_ascending),
    Rule("two or more pairs of bytes and us, such as [[65536, 60], [4194304, 2900]]"),
]


class Hardware(Settings):
    """The links of a cluster whose nodes have `devices` devices each.

    Attributes:
        link: what connects the devices of a node.
        node_gb_per_s: bus bandwidth of an all-reduce within a node [GB/s].
        network_gb_per_s: bandwidth of the network, summed over all rails of a node [GB/s].
        bucket_mib: gradients are exchanged in buckets of this size; DDP's default is 25 [MiB].
        hop_us: measured time of one step of a ring, instead of the model's: two or more pairs
            of bytes passed on and the time it takes, in ascending order of bytes [bytes, us].
        host_us_per_example: extra time per example when all devices of a node are in use, since
            they share input, power and cooling [us].
    """

    link: Literal["nvlink", "pci"]
    node_gb_per_s: Positive
    network_gb_per_s: Positive
    bucket_mib: Positive
    hop_us: _Pairs | None = None
    host_us_per_example: Positive | None = None
