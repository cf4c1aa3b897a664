"""The arguments of a worker process: plain values only, so that they travel to any process."""

import signal
from dataclasses import dataclass

#: A file in the attempt's folder: the ranks save after the step they are in, and exit.
GRACEFUL_STOP = "graceful-stop"
#: A file beside the folders of a run's attempts, which share it.
CHECKPOINT = "checkpoint.ckpt"
#: A file in the attempt's folder: the optimizer has taken a step.
FIRST_STEP = "first-step"
#: In the reason of a run whose metric is no logged name: no result, as before the first step.
METRIC_NOT_LOGGED = "metric must be a name that the module logs"
#: Signals that reach the fork server and ranks too, as a terminal, `timeout`, torchrun and systemd
#: send them, but are their launcher's business: it has runs saved first.
SIGNALS_OF_LAUNCHER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: A variable: modules that the fork server imports for all runs, with commas between.
PRELOADED = "SWEEPER_PRELOAD"
#: Exit codes above this say with which errno the attempt's folder could not be written.
UNWRITABLE_EXIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArgs:
    """One rank of one run.

    `folder` is the attempt's and holds config.json; the run's checkpoint lies beside it.
    `local_rank` counts on its node; `environment` are variables to set before training, and
    `master` is the address of rank 0's node if the run spans nodes.
    """

    folder: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    threads: int
    environment: dict[str, str]
    master: str | None = None
