"""Sharpness-aware minimisation: descend along the gradient at worse weights nearby."""

import inspect
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torchmetrics import Metric

from lightning_modules.callbacks.steps import loss_scale
from lightning_modules.data.randomness import keep_generators
from lightning_modules.layers.ghost_batchnorm import track_statistics
from lightning_modules.run_class import run_class
from sweeper.upstream.torchs import metric_state, set_metric_state

_TINY = 1e-30


class SAM(Callback):
    """Takes each micro-batch's gradient at ``w + rho g / |g|``, ``g`` its gradient at ``w``.

    The norm is over all layers. The loss, the sums and the running statistics of the epoch are
    those of the pass at ``w``; this callback runs before those that read what a step returns. What
    a module logs comes from the other pass. Both passes make the same random draws.

    Args:
        rho: how far to climb, as a norm over all weights.

    Source:
        Foret et al. 2020, arXiv:2010.01412, without the second-order term.
    """

    def __init__(self, *, rho: float) -> None:
        self._rho = rho
        self._at_w: dict[str, Any] = {}
        self._weights: list[Tensor] = []
        self._kept: list[Tensor] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the loss and the gradient at the weights, and climb."""
        # Lightning gives `training_step` the index too if it takes that.
        accepted = inspect.signature(pl_module.training_step).parameters.values()
        takes_all = any(p.kind is p.VAR_POSITIONAL for p in accepted)
        taken = (copy(batch), batch_idx)[: 2 if takes_all else len(accepted)]
        # The other pass logs, updates metrics and draws as if this pass had not been made.
        metrics = [part for part in pl_module.modules() if isinstance(part, Metric)]
        states = deepcopy([metric_state(metric) for metric in metrics])  # some share their states
        devices = [pl_module.device] if pl_module.device.type == "cuda" else []
        with (
            trainer.precision_plugin.train_step_context(),
            run_class(pl_module).mute("log"),
            keep_generators(),
            torch.random.fork_rng(devices),
        ):
            outputs: Any = pl_module.training_step(*taken)
        for metric, state in zip(metrics, states, strict=True):
            set_metric_state(metric, state)
        outputs = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        loss: Tensor = outputs["loss"]
        self._at_w = {"loss": loss.detach() / trainer.accumulate_grad_batches}
        if "sums" in outputs:
            self._at_w["sums"] = outputs["sums"]
        self._weights = [p for p in pl_module.parameters() if p.requires_grad]
        # Scaled like the backward pass of 16-mixed, where small gradients would otherwise underflow
        # to 0; only their direction matters.
        gradients = torch.autograd.grad(
            loss * loss_scale(trainer), self._weights, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            reach = self._rho / torch.nn.utils.get_total_norm(gradients).clamp_min(_TINY)
            self._kept = [weight.detach().clone() for weight in self._weights]
            for weight, gradient in zip(self._weights, gradients, strict=True):
                weight.add_(reach * gradient)
        track_statistics(pl_module, is_on=False)

    @torch.no_grad()
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return to the weights from before the climb."""
        for weight, kept in zip(self._weights, self._kept, strict=True):
            weight.copy_(kept)
        self._kept = []
        track_statistics(pl_module, is_on=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Give other callbacks the loss and sums of the pass at ``w``."""
        outputs.update(self._at_w)
