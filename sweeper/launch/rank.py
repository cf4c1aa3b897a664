"""What a worker process is told, and its first function; light, so that a launcher can name it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of one run: plain values only, so that it travels to any process.

    Attributes:
        folder: the attempt's folder; holds config.json.
        checkpoint: the run's checkpoint.
        rank: this process among the ranks.
        local_rank: this process among the ranks of its node.
        node_rank: this node among the nodes.
        world_size: ranks of the run.
        threads: of this process on a CPU.
        environment: variables to set before training.
    """

    folder: str
    checkpoint: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    threads: int
    environment: dict[str, str]


def enter(rank: Rank) -> None:
    """Train one rank; the imports are already there where a fork server preloaded them."""
    from sweeper.worker import work  # noqa: PLC0415  imports torch

    work(rank)
