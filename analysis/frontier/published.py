"""The model compared with published numbers; docs/frontier.md says where each was read."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.frontier.cluster import Cluster, read_cluster
from analysis.frontier.model import Work, step
from analysis.frontier.speed import Speeds
from sweeper.spec.hardware import Hardware

_RESNET50, _IMAGENET = 25_557_032, 1_281_167


class Point(NamedTuple):
    """A published number and the model's.

    Attributes:
        source: who measured it.
        point: what was measured.
        published: the number.
        predicted: the model's.
        is_fitted: whether the model was fitted to it.
    """

    source: str
    point: str
    published: float
    predicted: float
    is_fitted: bool


def compared() -> pd.DataFrame:
    """All points, with the error of the model."""
    frame = pd.DataFrame([*one_node(), *mlperf(), *horovod()])
    error = frame["predicted"] / frame["published"] - 1
    return frame.assign(error=error.map("{:+.1%}".format)).rename(columns={"is_fitted": "fitted"})


# Examples per GPU; examples/s of 1 and of 8 GPUs. Nothing is fitted to the DGX-1 with 32 GB.
_DGX_A100 = {"TF32": (256, 938, 7248), "AMP": (256, 2470, 16621)}
_DGX1_16 = {"FP32": (112, 367, 2855), "AMP": (256, 1200, 8322)}
_DGX1_32 = {"FP32": (112, 356, 2766), "AMP": (256, 1156, 8056)}


def one_node() -> Iterator[Point]:
    """How much faster 8 GPUs of a node are than one; the host's overhead is fitted per node."""
    for name, capability, node, fitted, checked in (
        ("DGX A100", 80, 240, _DGX_A100, {}),
        ("DGX-1 V100", 70, 120, _DGX1_16, {"32 GB": _DGX1_32}),
    ):
        slower = [8 / eight - 1 / one for _, one, eight in fitted.values()]
        hardware = Hardware(
            compute_capability=capability, link="nvlink", node_gb_per_s=node, network_gb_per_s=1,
            bucket_mib=25, host_us_per_example=1e6 * float(np.mean(slower)),
        )  # fmt: skip
        cluster = Cluster(name, 8, hardware)
        for memory, table in {"": fitted, **checked}.items():
            for precision, (batch, one, eight) in table.items():
                times = {batch: batch / one}
                work = Work(
                    num_bytes=4 * _RESNET50, evaluation_share=0, speeds=Speeds(times, "published")
                )
                predicted = step(8 * batch, 8, work, cluster)
                assert predicted
                speedup = 8 * batch / predicted.total_s / one
                what = f"{memory} {precision}, 1 to 8 GPUs".strip()
                yield Point(f"NVIDIA {name}", what, eight / one, speedup, is_fitted=not memory)


# H100 SXM, ResNet-50: GPUs, batch, epochs, minutes; then, of single nodes: GPUs, examples per GPU,
# examples/s between epochs.
_MLPERF = (
    (8, 3200, 35, 13.466), (64, 3200, 35, 2.664), (512, 20480, 50, 0.509),
    (768, 32256, 56, 0.369), (3584, 57344, 77, 0.183),
)  # fmt: skip
_ONE_NODE = ((8, 400, 56_075), (4, 800, 29_034), (4, 816, 29_146))
_MLPERF_EVALUATION = 0.0045


def mlperf() -> Iterator[Point]:
    """Minutes to 75.9 %, from the line through step times of single nodes, and the epochs run."""
    cluster = read_cluster("dgx_h100")
    num_bytes = 2.0 * _RESNET50  # exchanged in half precision, in one piece after the backward pass
    alone = [
        per_gpu / (rate / gpus) - cluster.exchange(num_bytes, gpus, 0).exposed_s
        for gpus, per_gpu, rate in _ONE_NODE
    ]
    each, fixed = np.polyfit([per_gpu for _, per_gpu, _ in _ONE_NODE], alone, 1)
    for gpus, batch, epochs, minutes in _MLPERF:
        per_gpu = batch // gpus
        compute_s = fixed + each * per_gpu
        step_s = compute_s * (1 + _MLPERF_EVALUATION)
        step_s += cluster.exchange(num_bytes, gpus, 0).exposed_s
        predicted = epochs * _IMAGENET / batch * step_s / 60
        point = f"{gpus:,} GPUs, batch {batch:,} [min]"
        yield Point("MLPerf 3.0 H100", point, minutes, predicted, is_fitted=gpus == 8)


# Parameters, examples/s of one P100 at 64 examples, efficiency of 512.
_HOROVOD = {
    "Inception V3": (23_834_568, 142, 0.90),
    "ResNet-101": (44_549_160, 129, 0.90),
    "VGG-16": (138_357_544, 154, 0.68),
}


def horovod() -> Iterator[Point]:
    """Efficiency of 128 servers of 4 P100 with 25 Gbit/s each; nothing is fitted."""
    hardware = Hardware(
        compute_capability=60, link="pci", node_gb_per_s=12, network_gb_per_s=3, bucket_mib=64
    )
    cluster = Cluster("pascal", 4, hardware)
    for name, (parameters, rate, efficiency) in _HOROVOD.items():
        speeds = Speeds({64: 64 / rate}, "published")
        work = Work(num_bytes=4 * parameters, evaluation_share=0, speeds=speeds, algorithm="ring")
        predicted = step(64 * 512, 512, work, cluster)
        assert predicted
        share = predicted.compute_s / predicted.total_s
        yield Point("Horovod", f"{name}, 512 GPUs", efficiency, share, is_fitted=False)
