"""An epoch that was left in the middle: what each rank had of it, on whatever ranks go on."""

from collections.abc import Sequence
from typing import Any


def part_of_rank(parts: Sequence[dict[str, Any]], rank: int, world_size: int) -> dict[str, Any]:
    """What a rank goes on from.

    On as many ranks as before each takes up its own part. On another number rank 0 has the sums
    over all parts and the others have nothing, so that the sums over ranks stay the same.

    Args:
        parts: of the ranks that left the epoch, as `Classifier` keeps them.
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
