"""The first steps of a run on a CPU, and an evaluation after them: what would fail it at once."""

import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch.distributed as dist

from lightning_modules.memory.trace import briefly, check_accumulation, only_rank
from lightning_modules.modules.item_findings import text_of
from lightning_modules.process.world import has_exchange
from lightning_modules.train import train
from sweeper.spec.config import RunConfig
from sweeper.spec.method_checks import gradient_span
from sweeper.spec.run_spec import RunSpec

_LEAST_MICRO_BATCH = 4  # [examples]


def why_failed(config: RunConfig) -> str:
    """The error that a few steps and an evaluation end with; empty if they raise none."""
    if has_exchange(config.comm_hook, 1, reproducible=bool(config.reproducible)):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return briefly(config, _micro_batch(config), _failure)
    except Exception as error:  # noqa: BLE001  whatever the user's code raises
        traceback.print_exc()
        return text_of(error)


def _micro_batch(config: RunConfig) -> int:
    """A small micro-batch, or the one that a method prescribes [examples]."""
    span = config.bn_span if isinstance(config.bn_span, int) else 1
    return gradient_span(config) or min(
        span * -(-_LEAST_MICRO_BATCH // span), config.data.num_train_examples
    )


def _failure(spec: RunSpec) -> str:
    with tempfile.TemporaryDirectory() as folder:
        record = train(spec, only_rank(Path(folder), _prepare))
    return "" if record["outcome"] == "finished" else record["reason"]


def _prepare(trainer: pl.Trainer, module: pl.LightningModule, loaders: dict[str, Any]) -> None:
    """Evaluate one batch of each loader."""
    del loaders
    check_accumulation(trainer, module)
    trainer.limit_val_batches = 1
