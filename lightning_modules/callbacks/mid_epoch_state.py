"""An epoch that was left in the middle: what each rank had of it, on whatever ranks go on."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from lightning_modules.callbacks.curve import EpochSums
from lightning_modules.callbacks.noise_meter import NoiseMeter
from lightning_modules.layers.ghost_batchnorm import span_batchnorms


def part_of_epoch(
    model: nn.Module, sums: EpochSums, noise: NoiseMeter | None, examples_of_steps: list[int]
) -> dict[str, Any]:
    """What this rank has of the epoch it is in, in plain containers.

    Args:
        model: its BatchNorm layers hold terms until the end of an epoch.
        sums: of losses and the like.
        noise: of gradients, if it is measured.
        examples_of_steps: that this rank trained on in each optimizer step so far [examples].
    """
    return {
        **sums.state(),
        "examples_of_steps": examples_of_steps,
        "statistics": [layer.state_of_terms() for layer in span_batchnorms(model)],
        "noise": None if noise is None else noise.state(),
    }


def take_up(
    part: dict[str, Any], model: nn.Module, sums: EpochSums, noise: NoiseMeter | None
) -> list[int]:
    """Go on from what `part_of_epoch` gave; the examples of each step so far."""
    sums.load_state(part)
    for layer, state in zip(span_batchnorms(model), part["statistics"], strict=True):
        layer.load_terms(state)
    if noise is not None:
        noise.load_state(part["noise"])
    return list(part["examples_of_steps"])


def steps_of(part: dict[str, Any]) -> int:
    """Optimizer steps that an epoch had when it was left [steps]."""
    return len(part["examples_of_steps"])


def part_of_rank(parts: Sequence[dict[str, Any]], rank: int, world_size: int) -> dict[str, Any]:
    """What a rank goes on from.

    On as many ranks as before each takes up its own part. On another number rank 0 has the sums
    over all parts and the others have nothing, so that the sums over ranks stay the same.

    Args:
        parts: of the ranks that left the epoch, from `part_of_epoch`.
        rank: this process among the ranks that go on.
        world_size: of those [count].
    """
    if len(parts) == world_size:
        return parts[rank]
    share = 1 if rank == 0 else 0
    totals = [part["totals"] for part in parts]
    examples = [part["examples_of_steps"] for part in parts]
    layers = zip(*(part["statistics"] for part in parts), strict=True)
    return {
        **parts[0],
        "totals": share * sum(totals),
        "examples_of_steps": [share * sum(of_step) for of_step in zip(*examples, strict=True)],
        "statistics": [_merged(of_ranks, share) for of_ranks in layers],
    }


def _merged(of_ranks: Sequence[dict[str, Any]], share: int) -> dict[str, Any]:
    """A BatchNorm layer's terms of all ranks, weighed for the same place in the epoch."""
    end = max(part["spans"] for part in of_ranks)
    terms = sum(part["keep"] ** (end - part["spans"]) * part["terms"] for part in of_ranks)
    return {**of_ranks[0], "spans": end, "terms": share * terms}
