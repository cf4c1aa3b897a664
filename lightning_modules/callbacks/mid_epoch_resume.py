"""Resuming in the middle of an epoch, on any number of ranks and any micro-batch."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torchmetrics import Metric, MetricTracker

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.data.randomness import seed_draws
from lightning_modules.modules.comparisons import clone_tensors, named_tensors
from lightning_modules.process.world import gather_states, own_state
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.spec.config import is_ours
from sweeper.upstream.lightnings import metrics_that_reset, set_epoch_progress
from sweeper.upstream.torchs import metric_state, set_metric_state


class MidEpochResume(Callback):
    """Makes Lightning and the loader resume after the steps already done in an epoch.

    Lightning would train on the first examples of the epoch again and never on the last: its loop
    counts micro-batches, whose number depends on the layout. It would also forget what a module has
    frozen or unfrozen since the start, and what the module, or a callback of the user's without a
    state, set in `on_train_epoch_start`; so that hook is called again. Other callbacks save their
    own state of the unfinished epoch.
    """

    def __init__(self, plan: RankPlan, contract: BatchContract) -> None:
        self._plan, self._contract = plan, contract
        self._module: LightningModule | None = None
        self._loaded: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the module, and act after its own `on_train_start`."""
        self._module = pl_module
        run_class(pl_module).after("on_train_start", lambda: self._resume_epoch(trainer, pl_module))

    def state_dict(self) -> dict[str, Any]:
        """What is frozen or in evaluation mode, and the epoch's steps, 0 between epochs [steps]."""
        assert self._module is not None, "it is trained"
        fixed = [name for name, p in self._module.named_parameters() if not p.requires_grad]
        still = [name for name, layer in self._module.named_modules() if not layer.training]
        return {"steps": self._contract.steps, "fixed": fixed, "in_evaluation": still}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until training has started."""
        self._loaded = state_dict

    def _resume_epoch(self, trainer: Trainer, module: LightningModule) -> None:
        """Begin a resumed epoch again; restore what was frozen and what was in evaluation mode."""
        loaded, self._loaded = self._loaded, {}
        if loaded.get("steps"):
            self._begin_epoch(trainer, module)
        if "fixed" in loaded:  # older checkpoints do not say
            fixed, still = set(loaded["fixed"]), set(loaded["in_evaluation"])
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name not in fixed)
            for name, layer in module.named_modules():
                layer.training = name not in still

    def _begin_epoch(self, trainer: Trainer, module: LightningModule) -> None:
        """Call the hooks of the epoch's start again, to redo what no checkpoint contains."""
        callbacks: Sequence[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        hooks = [  # of the user's callbacks, also those of the module's `configure_callbacks`
            callback.on_train_epoch_start
            for callback in callbacks
            if not is_ours(type(callback).__module__)
            and type(callback).state_dict is Callback.state_dict
            and type(callback).on_train_epoch_start is not Callback.on_train_epoch_start
        ]
        if not hooks and not is_overridden("on_train_epoch_start", module):
            return
        with _keep_state(trainer, module):
            seed_draws(self._plan.seed, trainer.current_epoch)
            for hook in hooks:
                hook(trainer, module)
            module.on_train_epoch_start()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set Lightning's progress to the steps already taken, in micro-batches of this layout."""
        steps, epoch = checkpoint["callbacks"][self.state_key]["steps"], checkpoint["epoch"]
        self._plan.resume(epoch if steps else epoch + 1, steps)
        if not steps:
            return
        taken = steps * self._plan.split(epoch).accumulation_steps
        set_epoch_progress(checkpoint, taken)


@contextmanager
def _keep_state(trainer: Trainer, module: LightningModule) -> Generator[None]:
    """Log nothing in the block; afterwards restore weights, buffers and rates as loaded."""
    kept = clone_tensors(module)
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    with run_class(module).mute("log"):
        yield
    with torch.no_grad():
        for name, tensor in named_tensors(module):
            if name in kept:
                tensor.copy_(kept[name])
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


_State = dict[str, dict[str, Any]]  # by a metric's name: its state, and how often it was updated


class MetricStates(Callback):
    """Saves the states of a module's metrics, and puts them back once training has started.

    Checkpoints leave out metric states, and modules reset their metrics in `on_train_start`: the
    best value so far would be lost, and the mean of a resumed epoch would only cover its rest. On
    another number of ranks, only states that are the same on all ranks survive, such as a best
    value.
    """

    def __init__(self, contract: BatchContract) -> None:
        self._contract = contract
        self._trainer: Trainer | None = None
        self._module: LightningModule | None = None
        self._loaded: _State = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Act after the module's own `on_train_start`."""
        self._trainer, self._module = trainer, pl_module
        run_class(pl_module).after("on_train_start", self._restore_states)

    def state_dict(self) -> dict[str, Any]:
        """Every rank's states, without metrics that Lightning resets before their next update."""
        assert self._trainer is not None
        reset = metrics_that_reset(self._trainer, in_epoch=bool(self._contract.steps))
        states = {
            name: metric_state(metric)
            for name, metric in self._metrics()
            if id(metric) not in reset
        }
        return {"ranks": gather_states(states)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep this rank's states until training has started."""
        self._loaded = own_state(state_dict["ranks"], lambda states, share: _common_states(states))

    def _restore_states(self) -> None:
        assert self._module is not None, "it is trained"
        loaded, self._loaded = self._loaded, {}
        for name, tracker in [*self._module.named_modules()]:
            if isinstance(tracker, MetricTracker):  # it gains a metric with each epoch
                while any(f"{key}.".startswith(f"{name}.{len(tracker)}.") for key in loaded):
                    tracker.increment()
        for name, metric in self._metrics():
            if name in loaded:
                set_metric_state(metric, loaded[name])

    def _metrics(self) -> Iterator[tuple[str, Metric]]:
        assert self._module is not None, "it is trained"
        parts = self._module.named_modules()
        return ((name, part) for name, part in parts if isinstance(part, Metric))


def _common_states(states: Sequence[_State]) -> _State:
    """The states of metrics that are the same on all ranks."""
    first = states[0]
    return {name: a for name, a in first.items() if all(_is_same(a, s.get(name)) for s in states)}


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and all(_is_same(a[key], b.get(key)) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return a == b
