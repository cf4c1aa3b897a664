"""The model of `analysis frontier` against published numbers.

docs/frontier.md says where each number was read.

    python -m benchmarks.frontier
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.frontier.machines import Cluster, MachineSpeeds, read_cluster
from analysis.frontier.tradeoff import TradeoffStep, Work, step_time
from sweeper.planning.exchange import Algorithm, exchange
from sweeper.spec.hardware import Hardware

_RESNET50, _IMAGENET = 25_557_032, 1_281_167


class Point(NamedTuple):
    """A published number and the model's.

    Attributes:
        source: who measured it.
        point: what was measured.
        published: the number.
        predicted: the model's.
        fitted: whether the model was fitted to it.
    """

    source: str
    point: str
    published: float
    predicted: float
    fitted: bool


def compare_published() -> pd.DataFrame:
    """All points, with the error of the model."""
    frame = pd.DataFrame([*one_node_points(), *mlperf_points(), *horovod_points()])
    error = frame["predicted"] / frame["published"] - 1
    return frame.assign(error=error.map("{:+.1%}".format))


def _full_step(
    cluster: Cluster,
    devices: int,
    micro_batch: int,
    rate: float,
    parameters: int,
    algorithm: Algorithm | None = None,
) -> TradeoffStep:
    """A step in float32 without accumulation, at a device's known speed [examples/s]."""
    speeds = MachineSpeeds({micro_batch: micro_batch / rate}, "published")
    work = Work(num_bytes=4 * parameters, evaluation_share=0, speeds=speeds, algorithm=algorithm)
    step = step_time(devices * micro_batch, devices, work, cluster)
    assert step
    return step


# Examples per GPU; examples/s of one GPU and of 8. Nothing is fitted to the DGX-1 with 32 GB.
_DGX_A100 = {"TF32": (256, 938, 7248), "AMP": (256, 2470, 16621)}
_DGX1_16 = {"FP32": (112, 367, 2855), "AMP": (256, 1200, 8322)}
_DGX1_32 = {"32 GB FP32": (112, 356, 2766), "32 GB AMP": (256, 1156, 8056)}


def one_node_points() -> Iterator[Point]:
    """How much faster 8 GPUs of a node are than one; the host's overhead is fitted per node."""
    for name, node, fitted, checked in (
        ("DGX A100", 240, _DGX_A100, {}),
        ("DGX-1 V100", 120, _DGX1_16, _DGX1_32),
    ):
        slower_us = [1e6 * (8 / eight - 1 / alone) for _, alone, eight in fitted.values()]
        hardware = Hardware(
            link="nvlink", node_gb_per_s=node, network_gb_per_s=1, bucket_mib=25,
            host_us_per_example=float(np.mean(slower_us)),
        )  # fmt: skip
        for precision, (micro_batch, alone, eight) in {**fitted, **checked}.items():
            step = _full_step(Cluster(name, 8, hardware), 8, micro_batch, alone, _RESNET50)
            speedup = 8 * micro_batch / step.total_s / alone
            point = f"{precision}, 1 to 8 GPUs"
            yield Point(f"NVIDIA {name}", point, eight / alone, speedup, precision in fitted)


# H100 SXM, ResNet-50: GPUs, batch, epochs, minutes; then, of single nodes: GPUs, examples per GPU,
# examples/s between epochs.
_MLPERF = (
    (8, 3200, 35, 13.466), (64, 3200, 35, 2.664), (512, 20480, 50, 0.509),
    (768, 32256, 56, 0.369), (3584, 57344, 77, 0.183),
)  # fmt: skip
_ONE_NODE = ((8, 400, 56_075), (4, 800, 29_034), (4, 816, 29_146))
_MLPERF_EVALUATION = 0.0045


def mlperf_points() -> Iterator[Point]:
    """Minutes to 75.9 %, from the line through step times of single nodes, and the epochs run."""
    cluster = read_cluster("dgx_h100")

    def exchange_s(gpus: int) -> float:  # in half precision, after the backward pass
        return exchange(2.0 * _RESNET50, 0, cluster.places(gpus), cluster.hardware).exposed_s

    alone_s = [per_gpu / (rate / gpus) - exchange_s(gpus) for gpus, per_gpu, rate in _ONE_NODE]
    example_s, fixed_s = np.polyfit([per_gpu for _, per_gpu, _ in _ONE_NODE], alone_s, 1)
    for gpus, batch, epochs, minutes in _MLPERF:
        compute_s = (fixed_s + example_s * batch / gpus) * (1 + _MLPERF_EVALUATION)
        predicted = epochs * _IMAGENET / batch * (compute_s + exchange_s(gpus)) / 60
        point = f"{gpus:,} GPUs, batch {batch:,} [min]"
        yield Point("MLPerf 3.0 H100", point, minutes, predicted, fitted=gpus == 8)


# Parameters, examples/s of one P100 at 64 examples, efficiency of 512.
_HOROVOD = {
    "Inception V3": (23_834_568, 142, 0.90),
    "ResNet-101": (44_549_160, 129, 0.90),
    "VGG-16": (138_357_544, 154, 0.68),
}


def horovod_points() -> Iterator[Point]:
    """Efficiency of 128 servers of 4 P100 with 25 Gbit/s each; nothing is fitted."""
    hardware = Hardware(link="pci", node_gb_per_s=12, network_gb_per_s=3, bucket_mib=64)
    cluster = Cluster("pascal", 4, hardware)
    for name, (parameters, rate, efficiency) in _HOROVOD.items():
        step = _full_step(cluster, 512, 64, rate, parameters, "ring")
        share = step.compute_s / step.total_s
        yield Point("Horovod", f"{name}, 512 GPUs", efficiency, share, fitted=False)


if __name__ == "__main__":
    print(compare_published().to_string(index=False, float_format="{:.3g}".format))
