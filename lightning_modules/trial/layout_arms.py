"""Short real runs of a user's project on several layouts, and what an observer notes of each step.

All are trained by `train`, with the user's hooks, callbacks, schedulers, samplers and validation:
two epochs of a few steps, the first of the training and one in its middle.
"""

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.flop_counter import flop_registry

from lightning_modules.callbacks.user_schedulers import refute_lengths
from lightning_modules.data.randomness import generator_states, keep_generators, seed_draws
from lightning_modules.layers.keyed_dropout import KeyedDropout
from lightning_modules.modules.run_trainer import RunTrainer
from lightning_modules.modules.steps import ends_step, list_loaders
from lightning_modules.process.shards import whole
from lightning_modules.process.user_errors import describe_error, is_refusal
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from lightning_modules.train import RankContext, train
from sweeper.spec.config import OWN_OPTIMIZER, RunConfig
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.trainer_settings import changing_callbacks
from sweeper.spec.worker_args import CHECKPOINT
from sweeper.upstream.lightnings import (
    call_after_micro_batch,
    configure_optimizers,
    has_epoch_values,
    move_second_epoch,
)
from sweeper.upstream.torchs import TorchDispatchMode, converts_numbers, pretend_ranks, record_seeds

PARTS = 4  # micro-batches of a step, where it is split
EPOCHS = 30  # that a project sees [epochs]
LATE = EPOCHS // 2  # the second epoch that is trained, 0-based
KEPT = "epochs-1.ckpt"
_MICRO_BATCH = 2  # of a step that is split [examples]
_SPAN = 4  # of BatchNorm, and the micro-batch of modules that have it [examples]
_RATE = 128  # the module's own learning rates are divided by it: what differs is not to grow
_MOST_FLOPS = 4e11  # of all arms: fewer steps are compared of modules that need more
_PASSES = 3 * 9  # of a whole batch per step, in all arms; a forward and a backward pass are three
_VALIDATED = (2, 4)  # batches, and examples of each
_SCHEDULED = 100  # steps per epoch that schedulers see, and that they are stepped for [steps]
_LAYOUTS = ((1, 1), (3, 1), (1, 2))  # accumulation steps, ranks, that schedulers are made on
EVERY_LAYER = (nn.Module,)
BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


Summary = tuple[float, float, int]  # a tensor's sum, norm and number of entries


@dataclass(slots=True)
class Step:
    """What an optimizer step did, summed over its micro-batches.

    `gradient` and `state` hold a summary of tensors by name: of gradients; of buffers but
    BatchNorm's, and of weights that get no gradient. `batches` are kept of the first step of an
    epoch.
    """

    epoch: int
    loss: float | None = None
    gradient: dict[str, Summary] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    state: dict[str, Summary] = field(default_factory=dict)
    batches: list[Any] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class LayoutArm:
    """A short run.

    Attributes:
        steps: of both epochs, or of the second if it was resumed.
        logged: by name, of each validation.
        drew: whether a micro-batch drew from a generator before its backward pass.
        drew_between: whether anything drew after one that ended no step.
        has_masks: whether there are dropout layers.
        converts: whether the module converts numbers to float32, whatever the precision.
        seeds: with which generators were seeded, by anybody, until training began.
        rates: of the schedulers on several layouts, shape (layouts, steps); empty if none.
        settings: numbers of each group of the optimizers but the rates; None where they change.
        followed: a value of a micro-batch by which a scheduler sets rates; empty if none does.
        error: what ended it, in words; empty if nothing did.
        has_begun: whether training began.
        refusal: the error, if our code refuses to train it; empty if not.
        no_span: why BatchNorm can have no span; empty if it can.
        no_lengths: why runs of several lengths cannot share their steps; empty if they can.
        folder: with its checkpoints.
    """

    steps: list[Step] = field(default_factory=list)
    logged: list[dict[str, float]] = field(default_factory=list)
    drew: bool = False
    drew_between: bool = False
    has_masks: bool = False
    converts: bool = False
    seeds: list[object] = field(default_factory=list)
    rates: list[list[float]] = field(default_factory=list)
    settings: tuple[dict[str, Any], ...] = ()
    followed: str = ""
    error: str = ""
    has_begun: bool = False
    refusal: str = ""
    no_span: str = ""
    no_lengths: str = ""
    folder: Path = Path()


class Retry(Exception):
    """Another trial is to be made of the project."""

    def __init__(self, trial: "Trial") -> None:
        super().__init__()
        self.trial = trial


class _Begun(Exception):
    """Training would begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What all arms of a project have in common.

    Attributes:
        config: of a run; its module, data, loss and callbacks are tried.
        precision: of the Trainer.
        tolerance: relative, of what is compared.
        most_steps: of each epoch, as far as there are examples [steps].
        span: of BatchNorm, where the module has it [examples].
        in_evaluation: kinds of layers that are in evaluation in training, but for BatchNorm's if
            it has a span.
        is_own: whether the module's own optimizers take the steps.
        is_split: whether its steps may be split into micro-batches.
        trusted: classes in its checkpoints.
    """

    config: RunConfig
    precision: str = "64-true"
    tolerance: float = 1e-9
    most_steps: int = 8
    span: int | None = None
    in_evaluation: tuple[type[nn.Module], ...] = ()
    is_own: bool = True
    is_split: bool = True
    trusted: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        """Of a step [examples]."""
        least = self.span or _MICRO_BATCH
        return PARTS * min(least, self.config.data.num_train_examples // PARTS)

    @property
    def steps(self) -> int:
        """Of each of the two epochs [steps]."""
        return min(self.most_steps, self.config.data.num_train_examples // self.batch)

    @property
    def micro_batches(self) -> int:
        """That are compared, of a layout that splits its steps."""
        return 2 * self.steps * PARTS

    @property
    def is_in_float32(self) -> bool:
        """Whether its numbers are right to float32's precision only."""
        return self.tolerance > 1e-9

    def spec(self, *, parts: int, ranks: int = 1, seed: int | None = None) -> RunSpec:
        """A layout of it, with so many micro-batches in a step."""
        config, batch = self.config, self.batch
        given: dict[str, Any] = config.resolved
        data = {**given["data"]} | ({"num_workers": 0} if "num_workers" in given["data"] else {})
        own = {"_target_": OWN_OPTIMIZER, "name": "module"}
        sgd = {"_target_": "torch.optim.SGD", "name": "sgd"}
        trainer = dict(given["trainer"])
        if callbacks := trainer.get("callbacks"):
            trainer["callbacks"] = changing_callbacks(callbacks)
        changed = config.with_changes(
            accelerator="cpu",
            precision=self.precision,
            batch=batch,
            batch_unit=None,
            micro_batch=batch // parts,
            devices=ranks,
            num_nodes=1,
            epochs=EPOCHS,
            steps=None,
            examples=None,
            evaluate_every=None,
            warmup=0,
            warmup_unit=None,
            warmup_start="base",
            base_lr=None if self.is_own else 0.1,
            base_batch=batch * _RATE,
            wd_rule=None,
            ema_rule=None,
            branch=None,
            trunk=None,
            lr_rule={"name": "linear"},
            schedule={"name": "constant"},
            optimizer=own if self.is_own else sgd,
            perturbation={"name": "none"},
            comm_hook={"name": "all_reduce", "nccl_algo": None},
            logger={"_target_": None},
            trainer=trainer,
            data=data,
            bn_span=self.span and min(self.span, batch // PARTS),
            loss_span=None,
            seed=config.seed if seed is None else seed,
            metric="distance_from_start",
            metric_mode="min",
            keep_checkpoint=[1],
            checkpoint_every=None,
            trusted_classes=list(self.trusted) or None,
            **dict.fromkeys(
                ("ema_decay", "noise_span", "gradient_delay", "loss_ceiling", "gradient_clip",
                 "reproducible", "timeout_s")
            ),
            update_angle=False,
        )  # fmt: skip
        spec = run_spec(changed)
        num = self.steps * batch
        return replace(spec, batch_plan=replace(spec.batch_plan, num_train_examples=num))

    def train(
        self,
        folder: Path,
        *,
        parts: int = 1,
        ranks: int = 1,
        rank: int = 0,
        seed: int | None = None,
        begins_only: bool = False,
        is_first: bool = False,
    ) -> LayoutArm:
        """Train an arm; from the checkpoint in its folder, if there is one.

        Args:
            folder: for its files.
            parts: micro-batches of a step.
            ranks: that train it, one of which this process is.
            rank: this process.
            seed: in place of the config's.
            begins_only: whether to end it where training would begin.
            is_first: whether schedulers are tried too, and `Retry` may be raised.
        """
        spec = self.spec(parts=parts, ranks=ranks, seed=seed)
        plan, own = RankPlan(spec, rank=rank), folder / f"rank-{rank}"
        own.mkdir(parents=True)
        observer = _Observer(self, plan, begins_only=begins_only, is_first=is_first)
        context = RankContext(
            rank=rank,
            folder=own,
            checkpoint=folder / CHECKPOINT,
            on_epoch=lambda rows: None,
            fit=observer.attach,
        )
        arm, arm.folder = observer.arm, folder
        try:
            with record_seeds(arm.seeds):
                record = train(spec, context)
            if record["outcome"] != Outcome.FINISHED:
                arm.error = f"Diverged: {record['reason']}"
        except _Begun:
            pass
        except Retry:
            raise
        except Exception as error:  # noqa: BLE001  whatever a user's module raises
            traceback.print_exc()
            arm.error = describe_error(error)
            arm.refusal = str(error) if is_refusal(error) else ""
        return arm


class _Observer(Callback):
    """Notes what each step did, and has the second epoch be one in the middle."""

    def __init__(self, trial: Trial, plan: RankPlan, *, begins_only: bool, is_first: bool) -> None:
        self.arm = LayoutArm()
        self._trial, self._plan = trial, plan
        self._begins_only, self._is_first = begins_only, is_first
        self._has_counted = not is_first
        self._step: Step | None = None
        self._before: list[bytes] = []  # states of the generators

    def attach(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        loaders: dict[str, Any],
    ) -> None:
        """Take part in a fit that is about to begin."""
        callbacks: list[Callback] = getattr(trainer, "callbacks")  # noqa: B009  untyped
        callbacks.append(self)
        trainer.limit_val_batches = _VALIDATED[0]
        move_second_epoch(trainer, to=LATE)
        call_after_micro_batch(trainer, lambda: self._end_micro_batch(trainer, module))
        run_class(module).wrap("training_step", self._count_flops)

        def log_in_training(log: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            """Its settings may depend on `training`, and Lightning refuses some that follow."""
            if module.training:
                log(*args, **kwargs)

        if self._trial.in_evaluation == EVERY_LAYER:
            run_class(module).wrap("log", log_in_training)

        def shorten(own: Callable[[], Any]) -> Any:
            found = own()
            for loader in list_loaders(found):
                if hasattr(loader, "shorten"):
                    loader.shorten(*_VALIDATED)
            return found

        if data := loaders.get("datamodule"):
            run_class(data).wrap("val_dataloader", shorten)
        else:
            loaders["val_dataloaders"].shorten(_VALIDATED[0] // trainer.world_size, _VALIDATED[1])

    def _count_flops(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._has_counted:
            return own(*args, **kwargs)
        self._has_counted = True
        with _Flops() as counter:
            returned = own(*args, **kwargs)
        per_step = _PASSES * max(1, counter.total)
        if (steps := max(1, int(_MOST_FLOPS / per_step))) < self._trial.steps:
            raise Retry(replace(self._trial, most_steps=steps))
        return returned

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """See what layers there are, and begin, if that was the task."""
        self.arm.has_begun = True
        self.arm.no_lengths = refute_lengths(trainer)
        precise = (torch.float64, torch.complex128)
        numbers = [p for p in pl_module.parameters() if p.is_floating_point() or p.is_complex()]
        self.arm.converts = any(p.dtype not in precise for p in numbers)
        self.arm.has_masks = any(isinstance(layer, KeyedDropout) for layer in pl_module.modules())
        if self._begins_only:
            raise _Begun
        has_batchnorm = any(isinstance(layer, BATCHNORMS) for layer in pl_module.modules())
        is_handled = self._trial.span or self._trial.in_evaluation or not self._is_first
        if has_batchnorm and not is_handled:
            raise Retry(replace(self._trial, span=_SPAN))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep what the epoch begins with, and the states that draws begin from."""
        epoch = trainer.current_epoch
        if self._step is None:
            self._step = Step(epoch)
        if batch_idx < trainer.accumulate_grad_batches:
            with suppress(Exception):  # whatever a user's object does when it is copied
                self._step.batches.append(deepcopy(batch))
        for layer in pl_module.modules():
            has_span = self._trial.span is not None and isinstance(layer, BATCHNORMS)
            if isinstance(layer, self._trial.in_evaluation) and not has_span:
                layer.training = False
        if self._plan.has_own_module:  # hooks may have drawn since the loader seeded
            with keep_generators():
                first = self._plan.first_example(epoch, batch_idx)
                seed_draws(self._plan.seed, epoch, first)
                self._before = generator_states()
        else:
            self._before = generator_states()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """See whether the module has drawn, and whether it computes in float32."""
        before, self._before = self._before, generator_states()
        self.arm.drew |= before != self._before
        self.arm.converts |= converts_numbers(loss)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Note the gradient."""
        if self._step is not None:
            named = pl_module.named_parameters()
            self._step.gradient |= {n: _summary(p.grad) for n, p in named if p.grad is not None}

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Add the loss, which Lightning has divided by the micro-batches of a step."""
        if self._step is not None and isinstance(outputs, Mapping) and "loss" in outputs:
            self._step.loss = (self._step.loss or 0.0) + float(outputs["loss"])

    def _end_micro_batch(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Note what a step has left behind, after all hooks."""
        step = self._step
        if step is None:
            return
        if not ends_step(trainer, trainer.fit_loop.batch_idx):
            self.arm.drew_between |= self._before != generator_states()
            return
        norms = [layer for layer in module.modules() if isinstance(layer, BATCHNORMS)]
        known = {id(buffer) for layer in norms for buffer in layer.buffers()}
        kept = {n: p for n, p in module.named_parameters() if n not in step.gradient}
        kept |= {n: b for n, b in module.named_buffers() if id(b) not in known}
        step.state = {n: _summary(t) for n, t in kept.items() if t.is_floating_point()}
        step.rates = list(getattr(trainer.strategy, "user_lrs", []))
        self.arm.steps.append(step)
        self._step = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note what was logged of the whole validation."""
        of_epoch, values = has_epoch_values(trainer), trainer.callback_metrics
        names = [name for name, is_whole in of_epoch.items() if is_whole and name in values]
        self.arm.logged.append({name: float(values[name]) for name in names})

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the run after its second epoch."""
        trainer.should_stop |= trainer.current_epoch >= LATE

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Step the schedulers on several layouts."""
        if self._is_first and self._trial.is_own and isinstance(trainer, RunTrainer):
            seen = {*trainer.callback_metrics}
            found = [_step_schedulers(trainer, pl_module, *layout) for layout in _LAYOUTS]
            self.arm.rates, (self.arm.settings, *_) = map(list, zip(*found, strict=True))
            self.arm.followed = next(filter(seen.__contains__, _monitors(pl_module)), "")


class _Flops(TorchDispatchMode):
    """Counts arithmetic by torch's formulas; `FlopCounterMode` breaks gradients within a step."""

    total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func.overloadpacket):
            self.total += int(formula(*args, **(kwargs or {}), out_val=returned))
        return returned


def _summary(tensor: Tensor) -> Summary:
    dense = whole(tensor.detach()).to_dense()
    real = (torch.view_as_real(dense) if dense.is_complex() else dense).double()
    return float(real.sum()), float(real.norm()), real.numel()


def _step_schedulers(
    trainer: RunTrainer, module: pl.LightningModule, accumulation_steps: int, ranks: int
) -> tuple[list[float], tuple[dict[str, Any], ...]]:
    """The rates of a module that is configured on a layout, and its schedulers stepped.

    Also each group's other numbers, None for those that change.
    """
    trainer.accumulate_grad_batches = accumulation_steps
    trainer.fit_loop.max_batches = _SCHEDULED * accumulation_steps
    rates: list[float] = []
    found: tuple[dict[str, Any], ...] = ()
    try:
        with pretend_ranks(ranks):
            optimizers, schedulers = configure_optimizers(module)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        # Those that were made with the module are the same ones on the next layout.
        states = [deepcopy(config.scheduler.state_dict()) for config in schedulers]
        initial = [dict(group) for group in groups]
        found = tuple(map(_numbers, groups))
        for _ in range(_SCHEDULED):
            rates += [group["lr"] for group in groups]
            for config in schedulers:
                if not config.reduce_on_plateau:
                    module.lr_scheduler_step(config.scheduler, None)
            for numbers, group in zip(found, groups, strict=True):
                numbers |= {name: None for name in numbers if numbers[name] != group[name]}
        for config, state in zip(schedulers, states, strict=True):
            config.scheduler.load_state_dict(state)
        for group, numbers in zip(groups, initial, strict=True):
            group.update(numbers)
    except Exception:  # noqa: BLE001  whatever a user's module raises once more
        rates = []
    return rates, found


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """A group's settings that are numbers, or tuples of them, without its rates."""
    return {
        name: value
        for name, value in group.items()
        if not name.endswith("lr")
        and all(type(v) in (int, float) for v in (value if type(value) is tuple else [value]))
    }


def _monitors(module: pl.LightningModule) -> list[str]:
    """What the module's schedulers follow from step to step."""
    with suppress(Exception):
        _, schedulers = configure_optimizers(module)
        return [str(c.monitor) for c in schedulers if c.reduce_on_plateau and c.interval == "step"]
    return []
