"""A rank of a run, top to bottom: plan, data, module, callbacks, Trainer, record."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ProgressBar
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import nn
from torch.optim import Optimizer

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.callbacks.checkpoint import (
    LaunchersSigterm,
    RunCheckpoint,
    Stopped,
    StopRequest,
)
from lightning_modules.callbacks.curve import Clock, Curve, StepReport
from lightning_modules.callbacks.distance import DistanceFromStart
from lightning_modules.callbacks.divergence import Divergence, find_divergence
from lightning_modules.callbacks.epoch_means import Evaluation, TrainingMetrics
from lightning_modules.callbacks.evaluated_weights import EvaluatedWeights
from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.callbacks.learning_rate import learning_rate
from lightning_modules.callbacks.logged_metrics import LoggedValues
from lightning_modules.callbacks.loggers import Mirror
from lightning_modules.callbacks.loss_items import LossItems
from lightning_modules.callbacks.measured_noise import GradientNoise, build_growth
from lightning_modules.callbacks.mid_epoch_resume import MidEpochResume
from lightning_modules.callbacks.running_statistics import RunningStatistics
from lightning_modules.callbacks.update_angle import UpdateAngle
from lightning_modules.callbacks.user_schedulers import OwnSchedulers
from lightning_modules.data.loaders import run_loaders
from lightning_modules.data.randomness import seed_everything
from lightning_modules.gradients.ddp_hooks import DDP_SETTINGS, build_exchange
from lightning_modules.gradients.ordered_sum import OrderedSum, use_deterministic_algorithms
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.blocks import checkpoint_blocks, compile_blocks
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span
from lightning_modules.layers.keyed_dropout import key_dropout
from lightning_modules.layers.sync_group import sync_group
from lightning_modules.methods.concurrent_adversary import ConAdv
from lightning_modules.methods.gradient_delay import GradientDelay, SliceDelays
from lightning_modules.methods.local_sgd import PostLocalSGD
from lightning_modules.methods.means_over_parts import PartMeans
from lightning_modules.methods.sam import SAM
from lightning_modules.methods.variance_reduction import WeighGradients
from lightning_modules.methods.weight_average import WeightAverage
from lightning_modules.modules.classifier import Classifier, build_classifier
from lightning_modules.modules.components import (
    instantiate_component,
    plain_attributes,
    show_output_folder,
)
from lightning_modules.modules.run_trainer import PlainCounts, RunTrainer
from lightning_modules.modules.user_logger import OwnLogger
from lightning_modules.modules.user_project import build_data, build_module
from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.optimizers.sharded_strategy import ShardedStrategy
from lightning_modules.process.device import peak_memory_gib
from lightning_modules.process.output import quieten
from lightning_modules.process.world import check_world, has_exchange
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import call_once_layers_exist, run_class
from sweeper.spec import config as settings
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.spans import noise_span
from sweeper.spec.worker_args import PROGRESS, kept_checkpoint
from sweeper.store.step_progress import StepProgress
from sweeper.store.trunks import trunk_file


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """The environment of a rank: its number, its files and its launcher.

    Attributes:
        rank: this process among the ranks of the run.
        folder: for Lightning's files; only for this attempt (Lightning#12369).
        checkpoint: the run's, replaced as it trains and at a graceful stop; resumed from.
        on_epoch: called with the curve's new rows after each evaluation or epoch, and the old rows
            at a resume.
        on_steps: called with the run's progress every few seconds; None for no reports.
        stop_requested: whether the run is to be saved after the step it is in, and stopped.
        fit: called with Trainer, module and loaders before the Trainer's own fit; may raise.
    """

    rank: int
    folder: Path
    checkpoint: Path
    on_epoch: Callable[[list[dict[str, Any]]], None]
    on_steps: Callable[[StepProgress], None] | None = None
    stop_requested: Callable[[], bool] = lambda: False
    fit: Callable[[pl.Trainer, pl.LightningModule, dict[str, Any]], None] | None = None


def train(spec: RunSpec, context: RankContext) -> dict[str, Any]:
    """Train a rank of a run, whose process group exists; return the record of the attempt.

    The record holds the outcome, the reason and what was measured.
    """
    quieten()
    started = time.perf_counter()
    if spec.config.reproducible:
        use_deterministic_algorithms()
    show_output_folder(context.folder / "files")
    seed_everything(spec.config.seed)
    data = build_data(spec.config.data, spec.config.module.target, spec.config.batch)
    plain = plain_attributes(spec.config.data, data)
    plan, position = RankPlan(spec, rank=context.rank), StepPosition()
    module = _build_module(spec, data, plan, position)
    callbacks = _build_callbacks(spec, context, plan, position, module)
    trainer = _build_trainer(spec, context, callbacks.in_order)
    check_world(spec.split.world_size, trainer.world_size)
    if spec.config.has_own_module:
        trainer.show_plain_counts_to(module)
    if isinstance(data, pl.LightningDataModule):
        trainer.show_plain_counts_to(data)
    elif hasattr(data, "settle"):
        data.settle(trainer.strategy.root_device, ranks_on_node=spec.config.devices)
    loaders = run_loaders(
        data,
        plan,
        in_whole_micro_batches=bool(spec.config.reproducible),
        windows=callbacks.items.windows if callbacks.items else None,
        plain=plain,
    )
    resumed = context.checkpoint if context.checkpoint.exists() else None
    if not resumed and (start := spec.facts.start):
        resumed = trunk_file(spec, start, context.checkpoint.parents[2])
    elif not resumed and (branch := spec.config.branch):
        parent = context.checkpoint.parent.with_name(branch.run)
        resumed = kept_checkpoint(parent, branch.epochs)
        if not resumed.exists():
            msg = (
                f"a branch needs the checkpoint of its parent after {branch.epochs:g} epochs; got "
                f"{branch.run} without it. See why it ended, or train it with "
                f"keep_checkpoint=[{branch.epochs:g}]."
            )
            raise ValueError(msg)
    if context.fit:
        context.fit(trainer, module, loaders)
    try:
        trainer.fit(module, **loaders, ckpt_path=resumed and str(resumed), weights_only=True)
    except Stopped as stopped:
        outcome, reason = Outcome.PREEMPTED, str(stopped)
    except Exception as error:  # noqa: BLE001  others are raised again
        outcome, reason = Outcome.DIVERGED, str(find_divergence(error))
    else:
        outcome, reason = Outcome.FINISHED, _describe_length(spec, plan, callbacks.curve.steps)
    callbacks.curve.report()  # a run resumed after its last epoch has not reported its curve yet
    callbacks.mirror.close(outcome)
    device = trainer.strategy.root_device  # the module itself is back on the CPU by now
    return {
        "outcome": outcome,
        "reason": reason,
        "wall_s": time.perf_counter() - started,
        "start_s": callbacks.clock.began_at - started,
        "device_kind": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "peak_memory_gib": peak_memory_gib(device),
        "num_parameters": sum(p.numel() for p in module.parameters()),
        "realised_batch_min": callbacks.contract.realised_batch_min,
        "realised_batch_max": callbacks.contract.realised_batch_max,
        "step_tokens_min": callbacks.contract.step_tokens_min,
        "step_tokens_max": callbacks.contract.step_tokens_max,
        "train_s": callbacks.clock.train_s,
        "elapsed_s": callbacks.clock.elapsed_s,
        **callbacks.curve.state_dict(),
        "curve": callbacks.curve.rows,
    }


def _describe_length(spec: RunSpec, plan: RankPlan, steps: int) -> str:
    """How long a run has trained, and whether it was stopped early."""
    if spec.config.epochs is None:
        early = f" of {spec.total_steps:,}: stopped early" * (steps < spec.total_steps)
        return f"trained {steps:,} steps{early}"
    done = plan.position(steps)
    early = f" of {spec.epochs}: stopped early" * (done < spec.epochs)
    return f"trained {done:g} epoch{'s' * (done != 1)}{early}"


def _build_module(
    spec: RunSpec, data: Any, plan: RankPlan, position: StepPosition
) -> pl.LightningModule:
    """The user's module or our classifier, with the run's BatchNorm spans, masks and optimizer."""
    config, is_own, has_spans = spec.config, spec.config.has_own_module, spec.has_spans
    if is_own:
        module = build_module(config.module)
    else:
        assert config.model is not None, "checked by the spec"
        module = build_classifier(
            config.model,
            data,
            label_smoothing=config.label_smoothing,
            zero_init_last_norm=config.zero_init_last_norm,
        )
        if config.checkpoint_activations:
            checkpoint_blocks(module.model)
    together = sync_group(spec.split, bn_span=spec.bn_span, rank=plan.rank) if has_spans else None

    def prepare() -> None:
        if has_spans:
            fix_batchnorm_span(module, span=spec.bn_span, position=position, together=together)
        key_dropout(module, seed=config.seed, position=position, is_strict=not is_own)
        if config.precision == "64-true":
            module.double()  # Lightning does so after it has loaded a checkpoint: too late
        if config.compile:
            compile_blocks(module)

    prepare()
    if is_own:
        call_once_layers_exist(module, prepare)  # it may have made more
    if config.keeps_own_optimizer:
        return module

    def configure_optimizers(module: pl.LightningModule) -> Optimizer:
        exempt = config.no_decay_on_norm_and_bias
        groups = parameter_groups(module, exempt_norm_and_bias=exempt)
        return config.optimizer.build(groups, lr=plan.lr(0))

    run_class(module).kind.configure_optimizers = configure_optimizers
    return module


def parameter_groups(model: nn.Module, *, exempt_norm_and_bias: bool) -> list[dict[str, Any]]:
    """A model's parameters in groups for an optimizer, each with `adapt`.

    The exempt parameters, biases and those of at most 1 dimension (the scales of norms), are a
    group of their own with `weight_decay` 0 and without a trust ratio.

    Source:
        Goyal et al. 2017, section 5.3 (no decay of BatchNorm's parameters); Jia et al. 2018 and
        MLPerf's skip list (biases too).
    """
    named = list(model.named_parameters())
    if not exempt_norm_and_bias:
        return [{"params": [parameter for _, parameter in named], "adapt": True}]
    exempt = {name for name, p in named if p.ndim <= 1 or name.rpartition(".")[2] == "bias"}
    groups = [
        {"params": [p for name, p in named if name not in exempt], "adapt": True},
        {"params": [p for name, p in named if name in exempt], "adapt": False, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Callbacks:
    """The callbacks of a run, and those of them that make its record."""

    in_order: list[Callback]
    clock: Clock
    contract: BatchContract
    curve: Curve
    items: LossItems | None
    mirror: Mirror


def _build_callbacks(
    spec: RunSpec,
    context: RankContext,
    plan: RankPlan,
    position: StepPosition,
    module: pl.LightningModule,
) -> _Callbacks:
    config = spec.config
    names = module.metrics if isinstance(module, Classifier) else ("loss",)
    items = LossItems(config.loss_items, plan) if config.loss_items else None
    metrics = TrainingMetrics(names, items)
    clock, contract, distance = Clock(), BatchContract(plan), DistanceFromStart()
    local = perturb = None
    if isinstance(hook := config.comm_hook, settings.PostLocalSGD):
        start_step = hook.start_epoch * spec.steps_per_epoch
        local = PostLocalSGD(local_steps=hook.local_steps, start_step=start_step)
    if isinstance(config.perturbation, settings.SAM):
        perturb = SAM(rho=config.perturbation.rho)
    elif isinstance(adversary := config.perturbation, settings.ConAdv):
        perturb = ConAdv(radius=adversary.radius, stale_steps=adversary.stale_steps)
    delay = None
    if isinstance(delays := config.gradient_delay, tuple):
        delay = SliceDelays(plan, position, delays=delays)
    elif delays:
        delay = GradientDelay(delay=delays)
    ordered = OrderedSum(plan, position) if config.reproducible else None
    decay = spec.settings["ema_decay"]
    average = None if decay is None else WeightAverage(decay=decay)
    noise = None if (span := noise_span(config)) is None else GradientNoise(plan, span=span)
    angle = UpdateAngle() if config.update_angle else None
    evaluation = Evaluation(plan.is_evaluated_at, names, average=average)
    of_all = (metrics, evaluation, distance, noise, angle, average)
    measured = [c for c in of_all if c is not None]
    logged = LoggedValues(plan, config.metric, measured)
    mirror = Mirror(spec, context.folder, rank=context.rank)
    listeners = [context.on_epoch, mirror.log_rows] if context.rank == 0 else []
    progress = context.folder / PROGRESS
    curve = Curve(plan, clock, [*measured, logged], listeners, file=progress)
    shown = context.on_steps if context.rank == 0 else None
    users = list(map(instantiate_component, config.trainer.callbacks))
    in_order = [
        clock,  # training time ends before anything else is done at an epoch's end
        contract,  # a broken contract is reported before its consequences
        logged,  # merged over ranks before anything reads it
        FollowPlan(plan, position),
        items,  # before anything reads a loss
        perturb,  # runs a pass over the micro-batch, so its position must be known
        local or ordered or build_exchange(config.comm_hook, devices=config.devices),
        metrics,  # as measured by SAM
        noise,  # of the gradients before they are weighted
        Divergence(  # before anything uses the gradient or the loss
            metrics,
            loss_ceiling=config.loss_ceiling,
            is_scaled=config.precision == "16-mixed",
            local=local,
            noise=noise,
        ),
        _build_part_means(config.optimizer),
        delay,  # after all that reads the gradient
        learning_rate(spec, plan, noise),  # may depend on the noise of the step
        build_growth(spec, plan, noise),  # may depend on the noise of the epoch
        average,  # of the weights after the step
        RunningStatistics(plan, position),  # merged before they are evaluated
        EvaluatedWeights(plan.is_evaluated_at, averages=average is not None),
        angle,  # of the weights in training mode
        evaluation,
        distance,
        *users,
        OwnSchedulers(plan) if config.keeps_own_optimizer else None,
        curve,  # a row of all that was measured above
        shown and StepReport(plan, contract, epochs=spec.most_epochs, report=shown),
        MidEpochResume(plan, contract),  # after past growth of the batch is restored
        LaunchersSigterm(),
        RunCheckpoint(  # of all that happened above; Lightning calls it last in any case
            context.checkpoint,
            attempt=context.folder.name,
            plan=plan,
            contract=contract,
            stop=StopRequest(
                context.stop_requested, rank=context.rank, save_every_s=spec.checkpoint_every_s
            ),
            clock=clock,
            can_stop=lambda: local is None or local.is_agreed,
            on_epoch=curve.report,
        ),
    ]
    return _Callbacks(
        in_order=[callback for callback in in_order if callback is not None],
        clock=clock,
        contract=contract,
        curve=curve,
        items=items,
        mirror=mirror,
    )


def _build_part_means(optimizer: settings.Optimizer) -> PartMeans | None:
    if optimizer.gradient_span is None:
        return None
    return WeighGradients() if optimizer.weighs_gradients else PartMeans()


def _build_trainer(spec: RunSpec, context: RankContext, callbacks: list[Callback]) -> RunTrainer:
    config = spec.config
    own: dict[str, Any] = {"gradient_clip_val": config.gradient_clip}
    own["enable_autolog_hparams"] = False  # module and data may have other values of one name
    reproducible, ranks = bool(config.reproducible), spec.split.world_size
    exchanges = has_exchange(config.comm_hook, ranks, reproducible=reproducible)
    ddp: dict[str, Any] = DDP_SETTINGS if isinstance(config.comm_hook, settings.PowerSGD) else {}
    kind: Callable[..., RunStrategy] = RunStrategy
    if config.is_sharded:
        kind = partial(
            ShardedStrategy,
            block_names=config.fsdp_blocks or (),
            shards_gradients=config.fsdp_gradients == "sharded",
        )
    parts = spec.split.accumulation_steps * ranks
    steps_per_epoch, steps = spec.steps_per_epoch, spec.total_steps
    counts = PlainCounts(parts=parts, steps_per_epoch=steps_per_epoch, steps=steps)
    return RunTrainer(
        counts,
        **own | config.trainer.flags,
        accelerator=config.accelerator,
        devices=config.devices,
        num_nodes=config.num_nodes,
        strategy=kind(
            exchanges=exchanges,
            is_users=config.has_own_code,
            trusted=config.trusted_classes or (),
            mappings=spec.mappings,
            **ddp,
        ),
        plugins=[LightningEnvironment()],  # the launcher made the ranks, whatever SLURM exports
        accumulate_grad_batches=spec.split.accumulation_steps,
        max_epochs=spec.most_epochs,
        # Not a position: EarlyStopping acts after each validation if this is not 1.
        val_check_interval=1.0 if config.evaluate_every is None else 0.5,
        precision=config.precision,
        default_root_dir=context.folder,
        callbacks=callbacks,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=OwnLogger(context.folder / "files") if config.has_own_module else False,
        enable_progress_bar=any(isinstance(c, ProgressBar) for c in callbacks),  # a user's
        enable_model_summary=False,
    )
