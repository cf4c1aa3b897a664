"""The largest eigenvalue of the Hessian, and its quotient along gradients of batches."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from curvlinops import HessianLinearOperator
from pytorch_lightning.callbacks import LambdaCallback
from scipy.sparse.linalg import eigsh
from scipy.stats import sem
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchmetrics import Metric

from lightning_modules.callbacks.loss_items import LossItems
from lightning_modules.modules.extra_pass import call_without_logs
from lightning_modules.train import RankContext, train
from sweeper.spec.config import RunConfig
from sweeper.spec.run_spec import run_spec
from sweeper.upstream.torchs import metric_state, set_metric_state, tree_map_only

_BATCHES, _EXAMPLES = 8, 2048


class _Measured(Exception):
    """Training is not to begin."""


def measure_sharpness(config: RunConfig, checkpoint: Path) -> dict[str, Any]:
    """Measure the sharpness of a run's loss at a checkpoint, which is only read.

    The examples are the first of the run's first epoch, at most those of the epoch. The module is
    in evaluation mode: BatchNorm uses its running statistics, dropout does nothing.

    Returns:
        `step`, the optimizer steps by then, and `lr`, the rate of the last; `sharpness`, the
        largest eigenvalue of the Hessian of the mean loss over `examples`; `batch_sharpness`, the
        mean over 8 batches of `batch` examples of g'Hg / g'g, with gradient g and Hessian H of the
        batch; its standard error, nan of a single batch.

    Raises:
        ValueError: if the module takes its optimizer steps by itself.

    Source:
        Cohen et al. 2021, arXiv:2103.00065 (sharpness); Andreyev & Beneventano 2024,
        arXiv:2412.20553 (batch sharpness).
    """
    changes: dict[str, Any] = {
        "devices": 1, "num_nodes": 1, "reproducible": False, "logger": {"_target_": None},
        "compile": None,  # compiled code is differentiated once
        "precision": config.precision if config.precision == "64-true" else "32-true",
        "comm_hook": {"name": "all_reduce", "nccl_algo": None},
        "bn_span": "micro",  # no layout is wrong for running statistics
    }  # fmt: skip
    measured: dict[str, Any] = {}

    def measure(trainer: pl.Trainer, module: pl.LightningModule) -> None:
        measured.update(_measure(trainer, module))
        raise _Measured

    def add_callback(trainer: pl.Trainer, *_: Any) -> None:  # its hook follows the weights' loading
        getattr(trainer, "callbacks").append(LambdaCallback(on_fit_start=measure))  # noqa: B009

    with tempfile.TemporaryDirectory() as name, suppress(_Measured):
        folder = Path(name)
        context = RankContext(
            rank=0, folder=folder, checkpoint=checkpoint, on_epoch=lambda _: None, fit=add_callback
        )
        train(run_spec(config.with_changes(**changes)), context)
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    lr = float(saved["optimizer_states"][0]["param_groups"][0]["lr"])
    return {"step": saved["global_step"], "lr": lr, **measured}


def _measure(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
    if not module.automatic_optimization:
        msg = (
            "sharpness needs a module that leaves its steps to Lightning; got "
            f"automatic_optimization=False of {type(module).__name__}. Measure another."
        )
        raise ValueError(msg)
    trainer.fit_loop.setup_data()
    loader: Any = trainer.train_dataloader
    size, parts = loader.batch_size, trainer.accumulate_grad_batches
    few = ceil(_EXAMPLES / size)
    micro_batches = [
        trainer.precision_plugin.convert_input(trainer.strategy.batch_to_device(each))
        for each in islice(loader, max(_BATCHES * parts, few))
    ]
    batches = [micro_batches[i * parts : (i + 1) * parts] for i in range(_BATCHES)]
    loss = _Loss(trainer, module.eval())
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        along = [_curvature_along_gradient(loss, each) for each in batches if each]
        largest = _largest_eigenvalue(loss, micro_batches[:few])
    return {
        "sharpness": largest, "examples": len(micro_batches[:few]) * size,
        "batch_sharpness": float(np.mean(along)), "batch_sharpness_se": float(sem(along)),
        "batch": parts * size,
    }  # fmt: skip


class _Loss(nn.Module):
    """The mean loss of a micro-batch, in the form that curvlinops takes."""

    def __init__(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().__init__()
        self.trainer, self.module = trainer, module
        metrics = [part for part in module.modules() if isinstance(part, Metric)]
        self.states = [(metric, metric_state(metric)) for metric in metrics]
        callbacks: list[Any] = getattr(trainer, "callbacks")  # noqa: B009  untyped
        self.items = next((each for each in callbacks if isinstance(each, LossItems)), None)

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        for metric, state in self.states:  # without what the last pass added, which is gone
            set_metric_state(metric, tree_map_only(Tensor, Tensor.clone, state))
        if self.items is not None:
            self.items.share = inputs["share"]
        step = call_without_logs(self.trainer, self.module, inputs["micro_batch"], 0)
        return step["loss"] if isinstance(step, Mapping) else step


class _Itself(nn.Module):
    """The criterion for a model that returns its loss."""

    reduction = "mean"

    def forward(self, loss: Tensor, _: Tensor) -> Tensor:
        return loss


def _hessian(loss: _Loss, micro_batches: Sequence[Any]) -> Any:
    shares = loss.items.shares(micro_batches) if loss.items else [None] * len(micro_batches)
    data = [
        ({"micro_batch": each, "share": share}, torch.zeros(1))
        for each, share in zip(micro_batches, shares, strict=True)
    ]
    weights = [p for p in loss.parameters() if p.requires_grad]
    return HessianLinearOperator(
        loss, _Itself(), weights, data, check_deterministic=False, batch_size_fn=_weigh_equally
    )


def _weigh_equally(_: object) -> int:
    return 1


def _curvature_along_gradient(loss: _Loss, batch: Sequence[Any]) -> float:
    hessian = _hessian(loss, batch)
    gradient, _ = hessian.gradient_and_loss()
    g, bent = (torch.cat([v.double().flatten() for v in x]) for x in (gradient, hessian @ gradient))
    return float(g @ bent / (g @ g))


def _largest_eigenvalue(loss: _Loss, micro_batches: Sequence[Any]) -> float:
    """By Lanczos's method, to a relative 1e-4."""
    hessian = _hessian(loss, micro_batches).to_scipy()
    start = np.random.default_rng(0).standard_normal(hessian.shape[0]).astype(hessian.dtype)
    tolerance: Any = 1e-4
    found = eigsh(hessian, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)
    return float(found[0])
