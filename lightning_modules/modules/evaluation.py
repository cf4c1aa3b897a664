"""Validation loss and accuracy: each example counted once, over all ranks."""

from collections.abc import Iterable, Iterator

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lightning_modules.callbacks.curve import EpochSums
from lightning_modules.data.batches import Data, val_batches
from lightning_modules.modules.loss import score
from sweeper.spec.batch import BatchSplit


def val_bounds(
    num_examples: int, *, split: BatchSplit, rank: int, in_whole_micro_batches: bool
) -> Iterator[tuple[int, int]]:
    """First example of each of a rank's micro-batches, and the one after its last.

    Args:
        num_examples: to evaluate, over all ranks [examples].
        split: micro-batch and ranks.
        rank: this process among the ranks.
        in_whole_micro_batches: give ranks whole micro-batches instead of equal shares, so that each
            pass has the same examples on every number of ranks.
    """
    unit = split.micro_batch if in_whole_micro_batches else 1
    units = -(-num_examples // unit)
    start, stop = (
        min(num_examples, units * end // split.world_size * unit) for end in (rank, rank + 1)
    )
    for first in range(start, stop, split.micro_batch):
        yield first, min(first + split.micro_batch, stop)


@torch.no_grad()
def evaluate(
    module: pl.LightningModule, model: nn.Module, data: Data, bounds: Iterable[tuple[int, int]]
) -> tuple[float, float]:
    """Loss and accuracy of the model over the examples that all ranks evaluate.

    Args:
        module: which is trained: its device and precision are used.
        model: logits from inputs.
        data: the data set.
        bounds: of this rank's micro-batches.
    """
    plugin = module.trainer.precision_plugin
    sums = EpochSums(module.device)
    model.eval()
    for batch in val_batches(data, bounds):
        converted = plugin.convert_input(batch)
        inputs, labels = module.transfer_batch_to_device(converted, module.device, 0)
        with plugin.val_step_context():
            loss, correct = score(model, model(in_memory_format(inputs)), labels)
        sums.add(loss, correct, len(labels))
    model.train()
    return sums.means()


def in_memory_format(inputs: Tensor) -> Tensor:
    """Images with their channels last, as the model has its weights; others as they are."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
