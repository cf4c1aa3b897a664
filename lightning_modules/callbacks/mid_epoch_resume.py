"""Resuming in the middle of an epoch, on any number of ranks and any micro-batch."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.data.generators import seed_draws
from lightning_modules.modules.comparisons import copied, tensors_of
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.spec.config import is_ours
from sweeper.upstream.lightnings import set_epoch_progress


class MidEpochResume(Callback):
    """Makes Lightning and the loader resume after the steps already done in an epoch.

    Lightning would train on the first examples of the epoch again and never on the last: its loop
    counts micro-batches, whose number depends on the layout. It would also forget what a module has
    frozen or unfrozen since the start, and what the module, or a callback of the user's without a
    state, set in `on_train_epoch_start`; so that hook is called again. Other callbacks save their
    own state of the unfinished epoch.

    Args:
        plan: the run's batch plan.
        contract: counts the steps of the epoch.
    """

    def __init__(self, plan: RankPlan, contract: BatchContract) -> None:
        self._plan, self._contract = plan, contract
        self._module: LightningModule | None = None
        self._loaded: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the module, and act after its own `on_train_start`."""
        self._module = pl_module
        run_class(pl_module).after("on_train_start", lambda: self._go_on(trainer, pl_module))

    def state_dict(self) -> dict[str, Any]:
        """What is frozen or in evaluation mode, and the epoch's steps, 0 between epochs [steps]."""
        assert self._module is not None, "it is trained"
        fixed = [name for name, p in self._module.named_parameters() if not p.requires_grad]
        still = [name for name, layer in self._module.named_modules() if not layer.training]
        return {"steps": self._contract.steps, "fixed": fixed, "in_evaluation": still}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until training has started."""
        self._loaded = state_dict

    def _go_on(self, trainer: Trainer, module: LightningModule) -> None:
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
        hooks = [one.on_train_epoch_start for one in _users(trainer) if _acts(one, Callback)]
        if not hooks and not _acts(module, LightningModule):
            return
        with _as_they_are(trainer, module):
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


def _users(trainer: Trainer) -> list[Callback]:
    """The user's callbacks without a state, also those of the module's `configure_callbacks`."""
    callbacks: Sequence[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return [
        one
        for one in callbacks
        if not is_ours(type(one).__module__) and type(one).state_dict is Callback.state_dict
    ]


def _acts(one: Any, kind: type[Any]) -> bool:
    return type(one).on_train_epoch_start is not kind.on_train_epoch_start


@contextmanager
def _as_they_are(trainer: Trainer, module: LightningModule) -> Generator[None]:
    """Log nothing in the block; afterwards restore weights, buffers and rates as loaded."""
    kept = copied(module)
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    with run_class(module).mute("log"):
        yield
    with torch.no_grad():
        for name, one in tensors_of(module):
            if name in kept:
                one.copy_(kept[name])
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
