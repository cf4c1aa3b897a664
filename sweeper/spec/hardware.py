"""What a cluster's devices and links are, as its preset in conf/cluster says."""

from typing import Literal

from sweeper.spec.values import Count, Positive, Settings


class Hardware(Settings):
    """The links of a cluster whose nodes have `devices` devices each.

    Attributes:
        compute_capability: of its GPUs, such as 70 (V100), 80 (A100), 90 (H100).
        link: what joins the devices of a node.
        node_gb_per_s: bus bandwidth of an all-reduce within a node [GB/s].
        network_gb_per_s: of the network, all rails of a node together [GB/s].
        bucket_mib: gradients are exchanged in buckets of this size; DDP's default is 25 [MiB].
        hop_us: measured latency of a step of a ring, in place of NCCL's constants [us].
        host_us_per_example: an example takes so much longer on a device where all devices of its
            node work, which share input, power and cooling [us].
    """

    compute_capability: Count
    link: Literal["nvlink", "pci"]
    node_gb_per_s: Positive
    network_gb_per_s: Positive
    bucket_mib: Positive
    hop_us: Positive | None = None
    host_us_per_example: Positive | None = None
