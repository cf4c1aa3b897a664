"""The LightningModule: one classifier, any model, the batch contract checked as it trains."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_modules.callbacks.adaptive import Adaptive
from lightning_modules.callbacks.curve import (
    Diverged,
    EpochSums,
    Recorder,
    all_reduced,
    check_contract,
)
from lightning_modules.callbacks.distance import DistanceFromStart
from lightning_modules.callbacks.mid_epoch_state import (
    part_of_epoch,
    part_of_rank,
    steps_of,
    take_up,
)
from lightning_modules.callbacks.noise_meter import NoiseMeter
from lightning_modules.callbacks.weight_average import WeightAverage
from lightning_modules.data.batches import Data, Settled, micro_batch_places
from lightning_modules.gradients.all_ranks import states_of_all_ranks
from lightning_modules.gradients.comm_hooks import build_comm_hook
from lightning_modules.gradients.local_steps import average_weights, local_steps
from lightning_modules.gradients.ordered_sum import ordered_gradients
from lightning_modules.gradients.sharpness import build_perturbation
from lightning_modules.layers.ghost_batchnorm import span_batchnorms
from lightning_modules.layers.keyed_dropout import stray_draws_refused
from lightning_modules.layers.position import StepPosition
from lightning_modules.modules.evaluation import evaluate, in_memory_format, val_bounds
from lightning_modules.modules.loss import score
from lightning_modules.optimizers.foreach import ForeachOptimizer
from sweeper.spec.gradient_noise import noise_span
from sweeper.spec.run_spec import RunSpec


class Classifier(pl.LightningModule):
    """Trains a model on a data set by a run's specification and measures what it did.

    Args:
        spec: the run.
        model: logits from inputs.
        data: the data set; its validation part is evaluated after each epoch.
        make_optimizer: the optimizer of a model's parameters.
        position: moved on before each forward pass, for layers that depend on the place.
        rank: this process among the ranks.
        val_examples: how many validation examples are evaluated; None for all [examples].
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        model: nn.Module,
        data: Data,
        make_optimizer: Callable[[nn.Module], Optimizer],
        position: StepPosition,
        rank: int,
        val_examples: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.recorder = Recorder()
        self._spec, self._data, self._make_optimizer = spec, data, make_optimizer
        self._position, self._rank = position, rank
        self._perturbation = build_perturbation(spec.config["perturbation"])
        decay = spec.config["ema_decay"]
        self._average = None if decay is None else WeightAverage(model, decay=decay)
        self._local = local_steps(spec)
        self.adaptive = Adaptive(spec)
        span = noise_span(spec.config)
        self._noise = None if span is None else NoiseMeter(span)
        self._distance = DistanceFromStart(model) if rank == 0 else None
        self._ordered = ordered_gradients(spec, model, position=position, rank=rank)
        self._left_parts: list[dict[str, Any]] = []
        comm_hook = build_comm_hook(spec.config["comm_hook"], self._local)
        self._comm_hook = self._ordered or comm_hook
        self._lay_out(epoch=0)
        self._examples, self._val_examples = 0, val_examples
        self._examples_of_steps: list[int] = []

    def configure_optimizers(self) -> Optimizer:
        """The optimizer; its learning rate is set anew at each step."""
        optimizer = self._make_optimizer(self.model)
        own = optimizer.micro_gradients if isinstance(optimizer, ForeachOptimizer) else None
        for watching in filter(None, (own, self._noise)):
            watching.watch(
                self.model.parameters(),
                accumulation_steps=lambda: self._split.accumulation_steps,
                loss_scale=self._loss_scale,
            )
        return optimizer

    def on_fit_start(self) -> None:
        """Tell the data where it trains."""
        if isinstance(self._data, Settled):
            self._data.settle(self.device, ranks_on_node=self._spec.config["devices"])

    def on_train_start(self) -> None:
        """Settle how ranks exchange gradients."""
        wrapped = self.trainer.strategy.model
        assert isinstance(wrapped, DistributedDataParallel)
        self._comm_hook.register(wrapped)
        if self._left_parts:
            self._resume_epoch()

    def on_train_epoch_start(self) -> None:
        """Start the sums of the epoch, and accumulate as its batch needs."""
        self._sums = EpochSums(self.device)
        self._lay_out(epoch=self.current_epoch)
        self.trainer.accumulate_grad_batches = self._split.accumulation_steps

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean loss of one micro-batch."""
        inputs, labels = in_memory_format(batch[0]), batch[1]
        self._move_position(batch_idx, examples=len(labels))
        self._examples += len(labels)
        with stray_draws_refused(self.model, self.device) if batch_idx == 0 else nullcontext():
            self._undivided = self._loss(inputs, labels)
        return self._undivided

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Lightning's, of the micro-batch's share in the step's loss; or of its own loss."""
        super().backward(self._undivided if self._ordered else loss, *args, **kwargs)

    def on_after_backward(self) -> None:
        """Take the micro-batch's gradients, if the order of their sum matters."""
        if self._ordered:
            self._ordered.add()

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss, correct = self._score(self.model(inputs), labels)
        self._sums.add(loss, correct, len(labels))
        if self._perturbation is None:
            return loss
        return self._perturbation.loss(
            self.model, inputs, lambda outputs: self._score(outputs, labels)[0], loss
        )

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """One optimizer step at the learning rate of this step, noted as the optimizer has it."""
        _set_lr(optimizer, self.adaptive.lr(self.global_step))
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        if self._average is not None:
            self._average.update(self.model)
        if self._local is not None:
            self._local.after_step(self.model)
        self.recorder.count_step(optimizer.param_groups[0]["lr"])

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Stop before non-finite gradients reach the weights; all ranks see the same ones."""
        self._examples_of_steps.append(self._examples)
        self._examples = 0
        can_overflow = self._spec.config["precision"] == "16-mixed"
        if can_overflow and self._noise is None:
            return  # the loss scaler provokes overflows on purpose and skips those steps
        if self._local is not None and self._local.is_local:
            return  # ranks have gradients of their own; the epoch's loss tells
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if math.isfinite(norm):
            self._follow_noise(optimizer, norm)
        elif not can_overflow:
            self._diverge("the gradient became non-finite", lr=optimizer.param_groups[0]["lr"])

    def on_train_epoch_end(self) -> None:
        """Measure the epoch: realised batches, training and validation loss and accuracy."""
        recorder = self.recorder
        train_loss, train_accuracy = self._sums.means()
        recorder.train_s += self._sums.seconds
        self._check_batches()
        self._merge_running_statistics()
        self._check_loss(train_loss)
        if self._local is not None and self._local.is_local:
            average_weights(self.model)
        with self._average.applied(self.model) if self._average else nullcontext():
            val_loss, val_accuracy = self._evaluate()
        recorder.elapsed_s += self._sums.seconds
        noise_scale = None if self._noise is None else self._noise.of_epoch()
        self._left_parts = []
        self.adaptive.end_epoch(self.current_epoch + 1, noise_scale)
        self.trainer.should_stop |= self.adaptive.is_done
        seen = recorder.curve[-1]["examples_seen"] if recorder.curve else 0
        recorder.curve.append(
            {
                "epoch": self.current_epoch + 1,
                "step": recorder.steps,
                "realised_batch": self._split.global_batch,
                "examples_seen": seen + self._steps * self._split.global_batch,
                "lr": recorder.last_lr,
                "train_loss": train_loss,
                "train_accuracy": train_accuracy,
                "val_loss": val_loss,
                "val_accuracy": val_accuracy,
                "distance_from_start": self._distance.of(self.model) if self._distance else None,
                "noise_scale": noise_scale,
                "elapsed_s": recorder.elapsed_s,
            }
        )

    @property
    def can_leave(self) -> bool:
        """Whether the run can be saved after the last step: inside an epoch, with one model."""
        is_inside = 0 < len(self._examples_of_steps) < self._steps
        return is_inside and (self._local is None or self._local.is_agreed)

    @property
    def progress(self) -> str:
        """Where the run is, after a step or an epoch."""
        epochs, steps = len(self.recorder.curve), len(self._examples_of_steps)
        return (
            f"after {steps} of {self._steps} steps of epoch {epochs + 1}"
            if steps
            else f"after epoch {epochs}"
        )

    def first_step(self, epoch: int) -> int:
        """Steps of a 0-based epoch that were taken before this process began [steps]."""
        is_left = self._left_parts and epoch == len(self.recorder.curve)
        return steps_of(self._left_parts[0]) if is_left else 0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what was measured so far, in plain containers (weights-only loading)."""
        checkpoint["recorder"] = self.recorder.state()
        checkpoint["adaptive"] = self.adaptive.state()
        checkpoint["comm_hook"] = self._comm_hook.state()
        checkpoint["left_parts"] = (
            states_of_all_ranks(
                part_of_epoch(self.model, self._sums, self._noise, self._examples_of_steps)
            )
            if self._examples_of_steps
            else []
        )
        if self._local is not None:
            checkpoint["optimizers_of_ranks"] = states_of_all_ranks(
                checkpoint["optimizer_states"][0]
            )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on measuring where the checkpoint left off."""
        self.recorder = Recorder.from_state(checkpoint["recorder"])
        if "adaptive" in checkpoint:  # not in those of earlier versions
            self.adaptive.load_state(checkpoint["adaptive"])
        self._comm_hook.load_state(checkpoint.get("comm_hook"))
        self._left_parts = checkpoint.get("left_parts", [])
        if self._left_parts:
            self._count_as_taken(checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"])
        else:  # a run ends with an epoch
            self.trainer.should_stop |= self.adaptive.is_done
        if self._local is not None:
            self._local.steps_taken = self.recorder.steps
            checkpoint["optimizer_states"] = [checkpoint["optimizers_of_ranks"][self._rank]]

    def _count_as_taken(self, progress: dict[str, Any]) -> None:
        """Tell Lightning the micro-batches that are behind, which another layout counts anew."""
        epoch = len(self.recorder.curve)
        taken = self.first_step(epoch) * self.adaptive.layout(epoch)[0].accumulation_steps
        progress["current"].update(ready=taken, started=taken, processed=taken, completed=taken - 1)

    def _resume_epoch(self) -> None:
        """Take up an epoch that was left in the middle; Lightning does not start it anew."""
        self.on_train_epoch_start()
        part = part_of_rank(self._left_parts, self._rank, dist.get_world_size())
        self._examples_of_steps = take_up(part, self.model, self._sums, self._noise)

    def _evaluate(self) -> tuple[float, float]:
        num, limit = self._data.num_val_examples, self._val_examples
        bounds = val_bounds(
            num if limit is None else min(num, limit),
            split=self._split,
            rank=self._rank,
            in_whole_micro_batches=self._ordered is not None,
        )
        return evaluate(self, self.model, self._data, bounds)

    def _score(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        smoothing = self._spec.config["label_smoothing"]
        return score(self.model, outputs, labels, label_smoothing=smoothing)

    def _loss_scale(self) -> float:
        """What losses are multiplied by before the backward pass, in 16-mixed."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return scaler.get_scale() if scaler is not None else 1.0

    def _move_position(self, micro_batch_index: int, *, examples: int) -> None:
        step, micro_step = divmod(micro_batch_index, self._split.accumulation_steps)
        first = self._places[micro_step] * self._split.micro_batch
        self._position.move(
            epoch=self.current_epoch,
            step=step,
            first_example=step * self._split.global_batch + first,
            examples=examples,
        )

    def _lay_out(self, *, epoch: int) -> None:
        self._split, self._steps = self.adaptive.layout(epoch)
        self._places = micro_batch_places(self._split, self._spec.bn_span)[self._rank]
        if self._ordered:
            self._ordered.lay_out(self._split)

    def _follow_noise(self, optimizer: Optimizer, gradient_norm: Tensor) -> None:
        if self._noise is None:
            return
        noise = self._noise.measure(self.model, gradient_norm, self._split.global_batch)
        if (lr := self.adaptive.lr_by(noise)) is not None:
            _set_lr(optimizer, lr)

    def _check_batches(self) -> None:
        """Compare the examples of every step, summed over ranks, with the global batch."""
        counted = all_reduced(torch.tensor(self._examples_of_steps, device=self.device))
        self._examples_of_steps = []
        self.recorder.count_batches(counted)
        check_contract(
            counted, steps=self._steps, asked=self._split.global_batch, epoch=self.current_epoch
        )

    def _merge_running_statistics(self) -> None:
        spans = self._steps * self._split.global_batch // self._spec.bn_span
        for layer in span_batchnorms(self.model):
            layer.merge_ranks(spans)

    def _check_loss(self, train_loss: float) -> None:
        ceiling = self._spec.config["loss_ceiling"]
        if not math.isfinite(train_loss):
            self._diverge("the training loss became non-finite", lr=self.recorder.last_lr)
        if ceiling is not None and train_loss > ceiling:
            reason = f"the training loss {train_loss:.4g} passed loss_ceiling={ceiling:g}"
            self._diverge(reason, lr=self.recorder.last_lr)

    def _diverge(self, reason: str, *, lr: float) -> None:
        epoch = self.current_epoch + 1
        msg = f"{reason} at step {self.recorder.steps} of epoch {epoch}, lr={lr:.6g}"
        raise Diverged(msg)


def _set_lr(optimizer: Optimizer | LightningOptimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
