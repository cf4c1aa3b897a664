"""A cluster's devices and links, as described by its preset in conf/cluster."""

from typing import Literal

from sweeper.spec.values import Positive, Settings


class Hardware(Settings):
    """The links of a cluster whose nodes have `devices` devices each.

    Attributes:
        link: what connects the devices of a node.
        node_gb_per_s: bus bandwidth of an all-reduce within a node [GB/s].
        network_gb_per_s: bandwidth of the network, summed over all rails of a node [GB/s].
        bucket_mib: gradients are exchanged in buckets of this size; DDP's default is 25 [MiB].
        host_us_per_example: extra time per example when all devices of a node are in use, since
            they share input, power and cooling [us].
    """

    link: Literal["nvlink", "pci"]
    node_gb_per_s: Positive
    network_gb_per_s: Positive
    bucket_mib: Positive
    host_us_per_example: Positive | None = None
