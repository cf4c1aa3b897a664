"""What a worker process is told: plain values only, so that it travels to any process."""

from dataclasses import dataclass

#: Exit codes above this say with which errno the attempt's folder could not be written.
UNWRITABLE_EXIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of one run.

    Attributes:
        folder: the attempt's folder; holds config.json.
        checkpoint: the run's checkpoint.
        rank: this process among the ranks.
        local_rank: this process among the ranks of its node.
        node_rank: this node among the nodes.
        world_size: ranks of the run.
        threads: of this process on a CPU.
        environment: variables to set before training.
        master: address of rank 0's node if the run spans nodes.
    """

    folder: str
    checkpoint: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    threads: int
    environment: dict[str, str]
    master: str | None = None
