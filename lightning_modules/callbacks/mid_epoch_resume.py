"""Resuming in the middle of an epoch, on any number of ranks and any micro-batch."""

from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torchmetrics import Metric, MetricTracker

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.data.randomness import seed_draws
from lightning_modules.modules.module_tensors import clone_tensors, named_tensors
from lightning_modules.process.world import gather_states, restore_state
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.spec.config import is_ours
from sweeper.upstream.lightnings import metrics_that_reset, set_epoch_progress
from sweeper.upstream.torchs import metric_state, set_metric_state

_States = dict[str, dict[str, Any]]  # by a metric's name: its state, and how often it was updated


class MidEpochResume(Callback):
    """Makes Lightning, the loader and the module resume after the steps already done in an epoch.

    Lightning would train on the first examples of the epoch again and never on the last: its loop
    counts micro-batches, whose number depends on the layout. It would also forget what a module has
    frozen or unfrozen since the start, and what the module, or a callback of the user's without a
    state, set in `on_train_epoch_start`; so that hook is called again. Other callbacks save their
    own state of the unfinished epoch.

    Checkpoints leave out the states of a module's metrics, and modules reset them in
    `on_train_start`. The best value so far would be lost, and the mean of a resumed epoch would
    only cover its rest; so the states are saved here, and put back once training has started. On
    another number of ranks, only states that are the same on all ranks survive, such as a best
    value.
    """

    def __init__(self, plan: RankPlan, contract: BatchContract) -> None:
        self._plan, self._contract = plan, contract
        self._trainer: Trainer | None = None
        self._loaded: dict[str, Any] = {}
        self._metrics: _States = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the Trainer, and act after the module's own `on_train_start`."""
        self._trainer = trainer
        run_class(pl_module).follow_hook(
            "on_train_start", lambda: self._restore(trainer, pl_module)
        )

    def state_dict(self) -> dict[str, Any]:
        """The epoch's steps, 0 between epochs [steps]; what is frozen or in evaluation mode.

        Of a user's module also every rank's metrics, except those that Lightning resets before
        their next update.
        """
        assert self._trainer is not None, "it trains the module"
        module, steps = self._trainer.lightning_module, self._contract.steps
        layers = dict(module.named_modules())
        state: dict[str, Any] = {
            "steps": steps,
            "fixed": [name for name, p in module.named_parameters() if not p.requires_grad],
            "in_evaluation": [name for name, layer in layers.items() if not layer.training],
        }
        if self._plan.has_own_module:
            reset = metrics_that_reset(self._trainer, in_epoch=bool(steps))
            state["metrics"] = gather_states(
                {
                    name: metric_state(metric)
                    for name, metric in layers.items()
                    if isinstance(metric, Metric) and id(metric) not in reset
                }
            )
        return state

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set Lightning's progress to the steps already taken, in micro-batches of this layout."""
        self._loaded = checkpoint["callbacks"][self.state_key]
        ranks: list[_States] | None = self._loaded.get("metrics")
        if ranks:  # on another number of ranks than before, those that are the same on all
            self._metrics = restore_state(
                ranks,
                lambda every, share: {
                    name: state
                    for name, state in every[0].items()
                    if all(_is_same(state, other.get(name)) for other in every)
                },
            )
        steps, epoch = self._loaded["steps"], checkpoint["epoch"]
        # between epochs, a checkpoint bears the number of the one that is over
        self._plan.resumed_at = (epoch, steps) if steps else (epoch + 1, 0)
        if steps:
            set_epoch_progress(checkpoint, self._plan.micro_steps(epoch, steps))

    def _restore(self, trainer: Trainer, module: LightningModule) -> None:
        """Restore metrics, begin a resumed epoch again, and restore what was frozen and how."""
        metrics, self._metrics = self._metrics, {}
        for name, tracker in [*module.named_modules()]:
            if isinstance(tracker, MetricTracker):  # it gains a metric with each epoch
                while any(f"{key}.".startswith(f"{name}.{len(tracker)}.") for key in metrics):
                    tracker.increment()
        for name, metric in module.named_modules():
            if isinstance(metric, Metric) and name in metrics:
                set_metric_state(metric, metrics[name])
        loaded, self._loaded = self._loaded, {}
        if loaded.get("steps"):
            self._begin_epoch(trainer, module)
        if loaded:
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
        kept = clone_tensors(module)  # weights, buffers and rates stay as loaded
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        with run_class(module).mute("log"):  # `LoggedValues` restores what it logged then
            seed_draws(self._plan.seed, trainer.current_epoch)  # as `FollowPlan` did then
            for hook in hooks:
                hook(trainer, module)
            module.on_train_epoch_start()
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                if name in kept:
                    tensor.copy_(kept[name])
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and all(_is_same(a[key], b.get(key)) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return a == b
