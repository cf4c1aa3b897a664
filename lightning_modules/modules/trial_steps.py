"""A few training steps of a user's module on a CPU, each from its initial weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchmetrics import Metric
from torchvision.ops import StochasticDepth

from lightning_modules.data.own_loaders import Request, make_batch
from lightning_modules.data.randomness import generator_states, seed_generators
from lightning_modules.layers.keyed_dropout import drawing_layers, key_dropout
from lightning_modules.layers.position import StepPosition
from lightning_modules.modules.comparisons import (
    attributes,
    changed_tensors,
    clone_tensors,
    named_tensors,
)
from lightning_modules.modules.own_logger import OwnLogger
from lightning_modules.modules.run_trainer import PlainCounts, RunTrainer
from lightning_modules.process.saved_classes import (
    drop_hyperparameters,
    find_saved_classes,
    trust,
)
from lightning_modules.run_class import run_class
from sweeper.upstream.lightnings import configure_optimizers, set_global_step
from sweeper.upstream.torchs import converts_numbers, pretend_ranks

WINDOW = 4  # examples of a micro-batch, which is split into halves, and into the first and the rest
STEPS = 100  # steps per epoch that schedulers see


class Once:
    """Items as they were when first fetched, since a data set may draw as it likes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._seen: dict[str, Any] = {}

    def __getitem__(self, key: Any) -> Any:
        if repr(key) not in self._seen:
            self._seen[repr(key)] = self._dataset[key]
        return deepcopy(self._seen[repr(key)])  # collate functions may change what they are given


class TrialBatches:
    """Claims to have more batches than it has, since training ends with the last pass."""

    def __init__(self, loader: "DataLoader[Any]", batches: Callable[[], Iterator[Any]]) -> None:
        self.dataset, self.batch_size = loader.dataset, WINDOW  # a module may ask for them
        self._batches = batches

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


_EPOCHS = 10  # epochs that schedulers see
_LAYOUTS = ((1, 1), (3, 1), (1, 2))  # accumulation steps, ranks
_MANY = 1000  # micro-batches of a step whose end is not reached
_FURTHER = 1.01  # factor on what is trained, so that averages of it would change
_ENTRIES = 2**22  # of a gradient that is kept
_STEP = 1  # the step of all passes: what depends on `global_step` is the same on every layout
_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_KNOWN_LAYERS = (
    *_BATCHNORMS,
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout, StochasticDepth),
)
_SAVING = {
    "on_save_checkpoint": pl.LightningModule.on_save_checkpoint,
    "get_extra_state": nn.Module.get_extra_state,
}


@dataclass(frozen=True, slots=True)
class Pass:
    """A training step on the examples at these places of the pass.

    `mode`: `fixed` has the layers that the run replaces in evaluation; `plain` changes nothing, and
    is made twice, as what each pass makes again is not lost; `within` is a `fixed` pass within a
    step, which it neither begins nor ends, and so is `middle`, which changes all that is trained
    first; `keyed` has keyed dropout, and BatchNorm in evaluation; `eval` has all
    layers in evaluation, and is made if `fixed` passes draw.
    """

    places: range
    mode: str


@dataclass(slots=True, kw_only=True)
class Result:
    """What a pass gave: the loss, the gradient, whether any generator was drawn from."""

    weight: float
    loss: float | None = None
    gradient: Tensor | None = None
    drew: bool = False
    is_made: bool = False

    @property
    def values(self) -> tuple[float, Tensor] | None:
        """Loss and gradient, if there are both."""
        return None if self.loss is None or self.gradient is None else (self.loss, self.gradient)


class _Done(Exception):
    """All passes were made."""


class TrialSteps(Callback):
    """Makes passes in turn, each from the initial weights, and keeps their results.

    Args:
        loader: of the training examples.
        examples: a few of them.
        weigh: counts what the loss of a batch is a mean over; None for its examples.
        precision: of the Trainer.

    Attributes:
        changed: attributes of the module that plain passes changed; None if they were not made.
        drawing_layers: layers other than dropout that may draw.
        changed_within: parameters and buffers, except BatchNorm's, that change within a step.
        rates: learning rates of its schedulers on several layouts, shape (layouts, steps); empty
            if it raised an error.
        arithmetic: the precision to which its numbers are right: it may convert them to float32.
        settings: numbers of each group of its optimizers but the rates; None where they change.
        followed: a value of a micro-batch by which a scheduler sets rates; empty if none does.
        error: what the module raised, which ended the passes.
        saved_by: the hook by which the module adds to checkpoints; empty if it does not.
        saved_classes: of the objects in a checkpoint, which are not read back by default.
        unsaved: what a checkpoint raised as it was saved or read back.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        examples: Sequence[Request],
        weigh: Callable[[Any], float] | None,
        precision: Any,
    ) -> None:
        self._loader, self._examples, self._weigh = loader, examples, weigh
        self._items = Once(loader.dataset)
        self.precision = precision
        self._passes: list[Pass] = []
        self._results: list[Result] = []
        self._fetched = Result(weight=0)
        self._kept: dict[str, Tensor] = {}
        self._before: list[dict[str, bytes | None]] = []
        self._at_start: dict[str, Tensor] = {}
        self._modes: dict[nn.Module, bool] = {}
        self._position = StepPosition()
        self._drawn_from: list[bytes] = []
        self.changed: list[str] | None = None
        self.drawing_layers: list[str] = []
        self.changed_within: list[str] = []
        self.rates: list[list[float]] = []
        self.settings: tuple[dict[str, Any], ...] = ()
        self.saved_classes: list[str] = []
        self.unsaved: Exception | None = None
        self.error: Exception | None = None
        self.arithmetic = precision
        self.followed = ""
        self.saved_by = ""

    def run(self, module: pl.LightningModule, data: pl.LightningDataModule) -> "TrialSteps":
        """Make the passes, until the module raises an error, if it does."""
        size = min(WINDOW, len(self._examples))
        is_accumulated = module.automatic_optimization and size > 1
        firsts = range(0, len(self._examples) - size + 1, size) if is_accumulated else ()
        self._passes = [
            *(Pass(part, "fixed") for first in firsts for part in _split_window(first, size)),
            *(Pass(range(size), mode) for mode in ("within", "middle") if is_accumulated),
            *[Pass(range(size), "plain")] * 2,
            *(Pass(part, "keyed") for part in _split_window(0, size)),
            *(Pass(part, "eval") for part in _split_window(0, size) if is_accumulated),
        ]
        kinds = {getattr(part, "users_class", type(part)) for part in module.modules()}
        hooks = [
            (name, getattr(kind, name, own)) for kind in kinds for name, own in _SAVING.items()
        ]
        self.saved_by = next((name for name, hook in hooks if hook is not _SAVING[name]), "")
        batches = TrialBatches(self._loader, self._make_batches)
        run_class(data).wrap("train_dataloader", lambda *_: batches)

        def log_in_training(log: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            """Its settings may depend on `training`, but Lightning refuses settings that change."""
            if module.training:
                log(*args, **kwargs)

        run_class(module).wrap("log", log_in_training)
        with TemporaryDirectory() as folder:
            trainer = RunTrainer(
                PlainCounts(parts=1, steps_per_epoch=STEPS, steps=STEPS * _EPOCHS),
                default_root_dir=folder,
                accelerator="cpu",
                devices=1,
                precision=self.precision,
                max_epochs=_EPOCHS,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                callbacks=[self],
                logger=OwnLogger(Path(folder)),
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            try:
                trainer.show_plain_counts_to(module)
                trainer.fit(module, datamodule=data)
            except _Done:
                pass
            except Exception as error:  # noqa: BLE001  whatever a user's module raises
                self.error = error
            else:
                self.error = RuntimeError("the module ended the epoch early")
            if any(result.is_made for result in self._results):
                seen = {*trainer.callback_metrics}
                found = [_step_schedulers(trainer, module, *layout) for layout in _LAYOUTS]
                self.rates, (self.settings, *_) = map(list, zip(*found, strict=True))
                self.followed = next(filter(seen.__contains__, _monitors(module)), "")
        return self

    def mode_results(self, mode: str) -> list[Result]:
        """The results of the passes in a mode, as far as they were made."""
        pairs = zip(self._passes, self._results, strict=False)
        return [result for made, result in pairs if made.mode == mode and result.is_made]

    def is_made(self, mode: str) -> bool:
        """Whether all passes in a mode were made, if there were any to make."""
        return len(self.mode_results(mode)) == sum(planned.mode == mode for planned in self._passes)

    def _make_batches(self) -> Iterator[Any]:
        for planned in self._passes:
            examples = [self._examples[place] for place in planned.places]
            batch = make_batch(self._loader, examples, dataset=self._items)
            weight = len(examples) if self._weigh is None else self._weigh(batch)
            self._fetched = Result(weight=weight)
            seed_generators(0)
            self._drawn_from = generator_states()  # before the transfer's hooks, which may draw
            yield batch

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the initial weights, and which layers are in evaluation."""
        self._kept = {  # counters go on through all passes, like a module's attributes
            name: tensor
            for name, tensor in clone_tensors(pl_module).items()
            if tensor.is_floating_point() or tensor.is_complex()
        }
        self._modes = {layer: layer.training for layer in pl_module.modules()}

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Prepare the module for the pass; see what `middle` and `plain` passes have changed."""
        now = self._passes[batch_idx]
        self._results.append(self._fetched)  # only now: hooks may iterate over batches too
        if self._at_start:
            self.changed_within = changed_tensors(pl_module, self._at_start, besides=_BATCHNORMS)
        if now.mode == "keyed":
            self._key_dropout(pl_module, now.places)
        is_middle = now.mode == "middle"
        trainer.accumulate_grad_batches = _MANY if now.mode in ("within", "middle") else 1
        set_global_step(trainer, _STEP)
        with torch.no_grad():
            for number, (name, tensor) in enumerate(named_tensors(pl_module)):
                if name in self._kept and tensor.shape == self._kept[name].shape:  # tables grow
                    tensor.copy_(self._kept[name])
                if is_middle and tensor.requires_grad:  # a copy that is trained too by another
                    tensor.mul_(_FURTHER + number / 1000)
        for layer, is_training in self._modes.items():
            layer.training = is_training and not _is_in_evaluation(layer, now.mode)
        if now.mode == "plain":
            self._before.append(attributes(pl_module, Metric))
        self._at_start = clone_tensors(pl_module) if is_middle else {}

    def _key_dropout(self, module: pl.LightningModule, places: range) -> None:
        """Key dropout by example; the first time, see what the `plain` passes have changed."""
        if self.changed is None:
            # What the first pass left behind had no effect if the second pass repeated it.
            first, second = (result.values for result in self.mode_results("plain"))
            repeats = (
                first is not None
                and second is not None
                and first[0] == second[0]
                and torch.equal(first[1], second[1])
            )
            after, before = attributes(module, Metric), self._before[repeats]
            self.changed = [name for name in after if after[name] != before.get(name)]
            self.drawing_layers = drawing_layers(module)
            key_dropout(module, seed=0, position=self._position, is_strict=False)
            self._modes = {part: self._modes.get(part, part.training) for part in module.modules()}
        self._position.move(epoch=0, step=0, first_example=places.start, examples=len(places))

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """See whether the module computes in float32, whatever the Trainer's precision."""
        if converts_numbers(loss):
            self.arithmetic = "32-true"

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Keep the gradient, and whether anything drew for it; later draws belong to the step."""
        self._results[-1].drew = self._drawn_from != generator_states()
        if pl_module.automatic_optimization:
            parameters = [*pl_module.parameters()]
            given = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            dense = [g.to_dense() for g in given]
            real = [torch.view_as_real(g) if g.is_complex() else g for g in dense]
            self._results[-1].gradient = _shorten(torch.cat([g.flatten().double() for g in real]))

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keep the loss; in manual optimization, see whether the whole step drew.

        Raises:
            _Done: after the last pass that is needed.
        """
        result = self._results[-1]
        result.is_made = True
        if not pl_module.automatic_optimization:
            result.drew = self._drawn_from != generator_states()
        if outputs and "loss" in outputs:
            result.loss = float(outputs["loss"]) * trainer.accumulate_grad_batches
        left = {planned.mode for planned in self._passes[batch_idx + 1 :]}
        if left <= ({"eval"} if not any(r.drew for r in self.mode_results("fixed")) else set()):
            self._try_checkpoint(trainer, pl_module)
            raise _Done

    def _try_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save a checkpoint as a run does, though without the values of weights, and read it."""

        def keep_small(own: Callable[..., None], checkpoint: dict[str, Any]) -> None:
            drop_hyperparameters(own, checkpoint)
            for key in ("state_dict", "optimizer_states"):
                checkpoint[key] = apply_to_collection(checkpoint[key], Tensor, Tensor.new_empty, 0)

        run_class(module).wrap("on_save_checkpoint", keep_small)
        path = Path(trainer.default_root_dir, "checkpoint.ckpt")
        try:
            trainer.save_checkpoint(path)
            self.saved_classes = find_saved_classes(path)
            with trust(self.saved_classes):
                torch.load(path, weights_only=True)
        except Exception as error:  # noqa: BLE001  whatever a user's objects raise
            self.unsaved = error


def _shorten(gradient: Tensor) -> Tensor:
    """A gradient as sums of its entries with random signs, since many of them are kept at once.

    It is linear in the gradient, and its norm is close to the gradient's.
    """
    if len(gradient) <= _ENTRIES:
        return gradient
    signs = torch.rand(len(gradient), generator=torch.Generator().manual_seed(0)) < 0.5
    signed = torch.where(signs, gradient, -gradient)
    return nn.functional.pad(signed, (0, -len(signed) % _ENTRIES)).view(-1, _ENTRIES).sum(0)


def _step_schedulers(
    trainer: RunTrainer, module: pl.LightningModule, accumulation_steps: int, ranks: int
) -> tuple[list[float], tuple[dict[str, Any], ...]]:
    """The rates of a module that is configured on a layout, and its schedulers stepped.

    Also each group's other numbers, None for those that change.
    """
    trainer.accumulate_grad_batches = accumulation_steps
    trainer.fit_loop.max_batches = STEPS * accumulation_steps
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
        for _ in range(STEPS):
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


def _split_window(first: int, size: int) -> list[range]:
    """A window, its halves, its first example and the others."""
    stop = first + size
    cuts = [first + size // 2, first + 1]
    return [range(first, stop), *(p for cut in cuts for p in (range(first, cut), range(cut, stop)))]


def _is_in_evaluation(layer: nn.Module, mode: str) -> bool:
    """Whether a layer is in evaluation in the passes of a mode."""
    if mode in ("fixed", "within"):
        return isinstance(layer, _KNOWN_LAYERS) or type(layer).__name__ == "DropPath"
    return mode == "eval" or (mode == "keyed" and isinstance(layer, _BATCHNORMS))
