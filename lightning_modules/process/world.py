"""Whether the ranks that there are, and that Lightning sees, are those of the run."""

import pytorch_lightning as pl
import torch.distributed as dist


def check_world(world_size: int) -> None:
    """Raise RuntimeError if the process group is not that of the run's ranks."""
    realised = dist.get_world_size()
    if realised != world_size:
        msg = (
            f"the run must train on devices x num_nodes = {world_size} ranks; "
            f"got {realised} ranks. Start one process per rank."
        )
        raise RuntimeError(msg)


def check_trainer(trainer: pl.Trainer, world_size: int) -> None:
    """Raise RuntimeError if Lightning sees other ranks than the run's."""
    if trainer.world_size != world_size:
        msg = (
            f"Lightning must see the run's {world_size} ranks; it sees {trainer.world_size}. "
            "Check the rank variables of the launcher."
        )
        raise RuntimeError(msg)
