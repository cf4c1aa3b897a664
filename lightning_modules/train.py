"""One rank of one run, top to bottom: data, model, optimizer, fit, record."""

import inspect
import logging
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_modules.callbacks.curve import Diverged
from lightning_modules.callbacks.graceful_stop import Leaving, Left
from lightning_modules.callbacks.loggers import Mirror
from lightning_modules.callbacks.sigterm import LaunchersSigterm
from lightning_modules.data.batches import Data, MicroBatches
from lightning_modules.gradients.comm_hooks import ddp_settings
from lightning_modules.gradients.ordered_sum import use_deterministic_algorithms
from lightning_modules.instantiate import build
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span
from lightning_modules.layers.keyed_dropout import key_dropout
from lightning_modules.layers.position import StepPosition
from lightning_modules.layers.span_ranks import span_ranks
from lightning_modules.layers.zero_init import zero_last_norms
from lightning_modules.modules.classifier import Classifier
from lightning_modules.optimizers.parameter_groups import parameter_groups
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this rank trains.

    Attributes:
        rank: this process among the ranks of the run.
        folder: for whatever Lightning writes; of this attempt alone (Lightning#12369).
        checkpoint: the run's checkpoint, replaced after each epoch and when the run is left;
            resumed from if it is there.
        on_epoch: told the curve's new rows after each epoch, and the old ones at a resume.
        val_examples: how many validation examples are evaluated; None for all [examples].
        is_asked_to_leave: whether the run is to be saved after the step it is in, and left.
    """

    rank: int
    folder: Path
    checkpoint: Path
    on_epoch: Callable[[list[dict[str, Any]]], None]
    val_examples: int | None = None
    is_asked_to_leave: Callable[[], bool] = lambda: False


def train(spec: RunSpec, place: Place) -> dict[str, Any]:
    """Train one rank of a run; the process group exists already.

    Returns:
        The record of the attempt: outcome, reason and what was measured.
    """
    _quieten()
    started = time.perf_counter()
    if spec.config["reproducible"]:
        use_deterministic_algorithms()
    _check_world(spec.split.world_size)
    torch.manual_seed(spec.config["seed"])
    data: Data = build(spec.config["data"])
    _check_data(data, spec)
    module = _module(spec, data, place)
    mirror = Mirror(spec, place.folder, rank=place.rank)
    progress = _Progress(place, mirror)
    trainer = _trainer(spec, place, progress)
    _check_trainer(trainer, spec.split.world_size)
    batches = MicroBatches(
        data,
        layout=module.adaptive.layout,
        bn_span=spec.bn_span,
        rank=place.rank,
        seed=spec.config["seed"],
        first_step=module.first_step,
    )
    resumed = place.checkpoint if place.checkpoint.exists() else None
    try:
        trainer.fit(module, batches, ckpt_path=str(resumed) if resumed else None)
    except Diverged as diverged:
        outcome, reason = Outcome.DIVERGED, str(diverged)
    except Left as left:
        outcome, reason = Outcome.PREEMPTED, str(left)
    else:
        outcome, reason = Outcome.FINISHED, f"trained {len(module.recorder.curve)} epochs"
    progress.tell(module)  # a run resumed after its last epoch has not told of its curve yet
    mirror.close(outcome)
    return {
        "outcome": outcome,
        "reason": reason,
        "wall_s": time.perf_counter() - started,
        "device_kind": _device_kind(module.device),
        "peak_memory_gib": _peak_memory_gib(module.device),
        "num_parameters": sum(p.numel() for p in module.parameters()),
        **module.recorder.state(),
    }


def _module(spec: RunSpec, data: Data, place: Place) -> Classifier:
    position = StepPosition()
    model: nn.Module = build(spec.config["model"], data.input_shape, data.num_classes)
    if spec.config["zero_init_last_norm"]:
        zero_last_norms(model)
    together = span_ranks(spec.split, bn_span=spec.bn_span, rank=place.rank)
    model = fix_batchnorm_span(model, span=spec.bn_span, position=position, together=together)
    model = key_dropout(model, seed=spec.config["seed"], position=position)
    if len(data.input_shape) == 3:  # images: faster on CPUs and tensor cores
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if spec.config["precision"] == "64-true":
        model = model.double()  # Lightning does so after it has loaded a checkpoint: too late

    def make_optimizer(model: nn.Module) -> Optimizer:
        exempt = spec.config["no_decay_on_norm_and_bias"]
        groups = parameter_groups(model, exempt_norm_and_bias=exempt)
        node = {key: value for key, value in spec.config["optimizer"].items() if key != "name"}
        return build({**node, "lr": spec.schedule.lr(0)}, groups)

    return Classifier(
        spec,
        model=model,
        data=data,
        make_optimizer=make_optimizer,
        position=position,
        rank=place.rank,
        val_examples=place.val_examples,
    )


def _trainer(spec: RunSpec, place: Place, progress: "_Progress") -> pl.Trainer:
    return pl.Trainer(
        accelerator=spec.config["accelerator"],
        devices=spec.config["devices"],
        num_nodes=spec.config["num_nodes"],
        strategy=DDPStrategy(**_DDP_SETTINGS, **ddp_settings(spec.config["comm_hook"])),
        plugins=[LightningEnvironment()],  # the launcher made the ranks, whatever SLURM exports
        accumulate_grad_batches=spec.split.accumulation_steps,
        max_epochs=spec.most_epochs,
        precision=spec.config["precision"],
        gradient_clip_val=spec.config["gradient_clip"],  # after accumulation, of the whole gradient
        default_root_dir=place.folder,
        callbacks=[progress, LaunchersSigterm()],
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


class _Progress(Checkpoint):
    """After the module's own end of an epoch: the checkpoint by rename, then the curve's row.

    Asked to leave, the same after a step.
    """

    def __init__(self, place: Place, mirror: Mirror) -> None:
        self._place, self._mirror = place, mirror
        self._leaving = Leaving(place.is_asked_to_leave, rank=place.rank)
        self._told = 0

    def tell(self, module: Classifier) -> None:
        """Report the rows of the curve that have not been reported by this process."""
        curve = module.recorder.curve
        if self._place.rank == 0 and len(curve) > self._told:
            self._place.on_epoch(curve[self._told :])
            for row in curve[self._told :]:
                self._mirror.row(row)
            self._told = len(curve)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        del trainer
        assert isinstance(pl_module, Classifier)
        self.tell(pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        self._save(trainer)
        self.tell(pl_module)
        is_last = trainer.should_stop or len(pl_module.recorder.curve) == trainer.max_epochs
        if not is_last and self._leaving.look(pl_module.device):
            raise Left(pl_module.progress)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        del outputs, batch
        assert isinstance(pl_module, Classifier)
        if (batch_idx + 1) % trainer.accumulate_grad_batches or not pl_module.can_leave:
            return
        if self._leaving.is_due(pl_module.device):
            self._save(trainer)
            raise Left(pl_module.progress)

    def _save(self, trainer: pl.Trainer) -> None:
        partial = self._place.checkpoint.with_suffix(f".{self._place.folder.name}.tmp")
        trainer.save_checkpoint(partial)
        if trainer.is_global_zero:
            partial.replace(self._place.checkpoint)


# Running statistics are merged once an epoch (norm.py), so nothing is broadcast at each step.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"  # before torch 2.15
)
_DDP_SETTINGS: dict[str, Any] = {_SYNC_BUFFERS: False, "gradient_as_bucket_view": True}


def _check_world(world_size: int) -> None:
    realised = dist.get_world_size()
    if realised != world_size:
        msg = (
            f"the run must train on devices x num_nodes = {world_size} ranks; "
            f"got {realised} ranks. Start one process per rank."
        )
        raise RuntimeError(msg)


def _check_trainer(trainer: pl.Trainer, world_size: int) -> None:
    if trainer.world_size != world_size:
        msg = (
            f"Lightning must see the run's {world_size} ranks; it sees {trainer.world_size}. "
            "Check the rank variables of the launcher."
        )
        raise RuntimeError(msg)


def _check_data(data: Data, spec: RunSpec) -> None:
    stated = spec.config["data"]["num_train_examples"]
    if data.num_train_examples != stated:
        msg = (
            f"data.num_train_examples must be the size of the data set; got {stated}, "
            f"the data set has {data.num_train_examples}. Correct the number in conf/data."
        )
        raise ValueError(msg)


def _device_kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _peak_memory_gib(device: torch.device) -> float:
    """Most memory in use at once: of the tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return peak_of_process_gib()


def peak_of_process_gib() -> float:
    """Most memory that this process has held at once: all that is resident, libraries and data."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _quieten() -> None:
    """Silence what Lightning says at each start; errors still speak."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch")
