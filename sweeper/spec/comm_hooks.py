"""Settings of the communication hooks, by which ranks exchange gradients; torch does the work."""

from typing import Annotated, Literal

from pydantic import Field

from sweeper.spec.values import LARGEST, Count, Epochs, InStep, Rule, Settings

NcclAlgo = Literal["ring", "tree"]


class AllReduce(Settings):
    """The mean over ranks in the gradients' own precision; `nccl_algo` None lets NCCL choose."""

    name: Literal["all_reduce"]
    nccl_algo: NcclAlgo | None


class BFloat16(Settings):
    """Gradients are exchanged as bfloat16."""

    name: Literal["bf16"]


class Float16(Settings):
    """Gradients are exchanged as float16."""

    name: Literal["fp16"]


class Hierarchical(Settings):
    """Sums within nodes of `ranks_per_node` ranks, all-reduced between nodes."""

    name: Literal["hierarchical"]
    ranks_per_node: InStep
    nccl_algo: NcclAlgo | None


class PostLocalSGD(Settings):
    """From `start_epoch` on, ranks step locally and average weights every `local_steps` steps."""

    name: Literal["post_local_sgd"]
    workers: InStep
    local_steps: Count
    start_epoch: Epochs


class PowerSGD(Settings):
    """Low-rank gradients with error feedback, after a plain all-reduce before `start_step`."""

    name: Literal["powersgd"]
    rank: Count
    start_step: Annotated[int, Field(ge=2, le=LARGEST), Rule("a whole number, 2 or more")]


CommHook = Annotated[
    AllReduce | BFloat16 | Float16 | Hierarchical | PostLocalSGD | PowerSGD,
    Field(discriminator="name"),
]
