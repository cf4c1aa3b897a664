"""One rank of a run over several nodes, started by srun."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from sweeper.launch.fork_server import isolate_imports
from sweeper.launch.ranks import network_interface
from sweeper.spec.config import run_config
from sweeper.spec.outcomes import Outcome
from sweeper.spec.worker_args import WorkerArgs
from sweeper.store.publish import publish_json

#: A file in the attempt's folder: tells ranks that have received SIGTERM to end at once.
END_RANKS = "end-ranks"

_LOOK_S = 1.0


def main(arguments: Sequence[str]) -> None:
    """Train the rank that srun assigned to this process."""
    (folder,) = arguments
    _heed_sigterm_later(Path(folder))
    config = run_config(json.loads((Path(folder) / "config.json").read_text()))
    world_size = config.world_size
    number = int(os.environ["SLURM_PROCID"])
    started = int(os.environ["SLURM_STEP_NUM_TASKS"])
    if started != world_size:
        reason = (
            f"srun must start a task per rank, devices x num_nodes = {world_size}; it started "
            f"{started}. Remove ntasks from hydra.launcher.parameters: ranks follow from devices "
            "and num_nodes."
        )
        refusal = {"outcome": Outcome.FAILED, "reason": reason}
        publish_json(Path(folder) / f"record-{number}.json", refusal)
        sys.exit(reason)
    master = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    rank = WorkerArgs(
        folder=folder,
        rank=number,
        local_rank=int(os.environ["SLURM_LOCALID"]),
        node_rank=int(os.environ["SLURM_NODEID"]),
        world_size=world_size,
        threads=config.threads,
        environment=network_interface(master),
        master=master,
    )
    with isolate_imports():
        from lightning_modules.worker import work  # imports torch

    work(rank)


def _heed_sigterm_later(folder: Path) -> None:
    """After SIGTERM train on until the job asks by file: srun can no longer stop ranks then."""

    def watch() -> None:
        while END_RANKS not in os.listdir(folder):  # noqa: PTH208  network file systems look again
            time.sleep(_LOOK_S)
        os._exit(1)

    def begin_to_watch(number: int, frame: FrameType | None) -> None:
        del number, frame
        threading.Thread(target=watch, daemon=True).start()

    signal.signal(signal.SIGTERM, begin_to_watch)


if __name__ == "__main__":
    main(sys.argv[1:])
