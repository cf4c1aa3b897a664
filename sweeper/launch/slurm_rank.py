"""One rank of a run over several nodes, as srun starts it."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sweeper.domain.outcomes import Outcome
from sweeper.launch.interface import interface_towards
from sweeper.rank import Rank


def main(arguments: Sequence[str]) -> None:
    """Take the place that srun has given and train."""
    folder, checkpoint = arguments
    config = json.loads((Path(folder) / "config.json").read_text())
    world_size = config["devices"] * config["num_nodes"]
    number = int(os.environ["SLURM_PROCID"])
    started = int(os.environ["SLURM_STEP_NUM_TASKS"])
    if started != world_size:
        reason = (
            f"srun must start devices x num_nodes = {world_size} ranks; it started {started}. "
            "Take ntasks out of hydra.launcher.parameters: ranks follow from devices and num_nodes."
        )
        _leave_refusal(Path(folder), number, reason)
        sys.exit(reason)
    master = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    rank = Rank(
        folder=folder,
        checkpoint=checkpoint,
        rank=number,
        local_rank=int(os.environ["SLURM_LOCALID"]),
        node_rank=int(os.environ["SLURM_NODEID"]),
        world_size=world_size,
        threads=config["threads"],
        environment=interface_towards(master),
        master=master,
    )
    from sweeper.worker import work  # imports torch

    work(rank)


def _leave_refusal(folder: Path, rank: int, reason: str) -> None:
    partial = folder / f".record-{rank}.tmp"
    partial.write_text(json.dumps({"outcome": Outcome.FAILED, "reason": reason}))
    partial.replace(folder / f"record-{rank}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
