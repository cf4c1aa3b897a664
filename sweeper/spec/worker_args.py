"""The arguments of a worker process: plain values only, so any process can receive them."""

import signal
from dataclasses import dataclass
from pathlib import Path

#: A file in the attempt's folder: asks the ranks to checkpoint after the current step and exit.
GRACEFUL_STOP = "graceful-stop"
#: A file next to the folders of a run's attempts, which share it.
CHECKPOINT = "checkpoint.ckpt"
#: There too, by the epochs trained, which may be 1.5: the checkpoints that are kept for branches.
KEPT = "epochs-{}.ckpt"
#: A file in the attempt's folder: the rows of its curve, as lines of JSON.
PROGRESS = "progress.jsonl"
#: A file in the attempt's folder: says that the optimizer has taken a step.
FIRST_STEP = "first-step"
#: In the reason of a run whose metric is never logged: counts as a failure before the first step.
METRIC_NOT_LOGGED = "metric must be a name that the module logs"
#: In the reason of a run whose data are not as many as were counted: the next plan counts again.
WRONG_COUNT = "data.num_train_examples must be the size of the data set"
#: Signals that terminals, `timeout`, torchrun and systemd send to the fork server and ranks too,
#: but that only the launcher handles: it has runs checkpoint first.
SIGNALS_OF_LAUNCHER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: An environment variable: comma-separated modules that the fork server imports for all runs.
PRELOADED = "SWEEPER_PRELOAD"
#: An exit code above this is this plus the errno with which writing the attempt's folder failed.
UNWRITABLE_EXIT = 64


def kept_checkpoint(folder: Path, epochs: float) -> Path:
    """The file in a run's folder with its checkpoint after these epochs, kept apart or the last."""
    apart = folder / KEPT.format(f"{epochs:.15g}")
    return apart if apart.exists() else folder / CHECKPOINT


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArgs:
    """The arguments of a rank of a run.

    `folder` is the attempt's folder with config.json; the run's checkpoint is next to it.
    `local_rank` counts within a node, `environment` holds variables to set before training, and
    `master` is the address of rank 0's node if the run spans several.
    """

    folder: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    threads: int
    environment: dict[str, str]
    master: str | None = None
