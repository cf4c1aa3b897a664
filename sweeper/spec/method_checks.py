"""Checks of methods that combine with any optimizer and model: which combinations are refused."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from sweeper.spec.batch import split_global_batch
from sweeper.spec.config import AllReduce, Hierarchical, Optimizer, PostLocalSGD, RunConfig, is_ours
from sweeper.spec.identity import MICRO
from sweeper.spec.noise import noise_span
from sweeper.spec.schedules import GrowingBatch, early_milestones
from sweeper.spec.trainer_settings import check_trainer


def gradient_span(config: RunConfig) -> int | None:
    """Examples whose mean gradient a method uses separately; None if no method does.

    Like the BatchNorm span, it is part of the experiment and not of the layout: it fixes the
    micro-batch, so that every layout gives the same statistics [examples].
    """
    return next(iter(_spans(config).values()), None)


def takes_micro_batches_whole(config: RunConfig) -> bool:
    """Whether BatchNorm, the loss or a method uses each micro-batch as a unit.

    Its size is then part of the experiment, so a machine's memory must not choose it.
    """
    is_whole = any(getattr(config, key) == "micro" for key in MICRO)
    return is_whole or gradient_span(config) is not None


def _spans(config: RunConfig) -> dict[str, int]:
    """By config key, the examples per part of methods that use gradients of parts of the batch."""
    noise_key = "base_batch" if config.noise_span is None else "noise_span"
    asked = {
        "optimizer.gradient_span": config.optimizer.gradient_span,
        "perturbation.gradient_span": getattr(config.perturbation, "gradient_span", None),
        noise_key: noise_span(config),
    }
    return {key: span for key, span in asked.items() if span is not None}


def check_methods(config: RunConfig) -> None:
    """Refuse methods that cannot be combined.

    Raises:
        ValueError: with a rule, the value and a remedy.
    """
    check_trainer(config.trainer)
    check_precision(config, has_gpu=config.accelerator != "cpu")
    check_optimizer(config.optimizer)
    _check_module(config)
    if spans := _spans(config):
        _check_spans(spans, config)
    hook = config.comm_hook
    if isinstance(hook, AllReduce | Hierarchical):
        _check_nccl(hook, config)
    if isinstance(hook, Hierarchical):
        _check_hierarchy(hook, config)
    if isinstance(hook, PostLocalSGD):
        _check_local_steps(hook, config)
    if config.reproducible:
        _check_reproducible(config)


def check_precision(config: RunConfig, *, has_gpu: bool) -> None:
    """Refuse a precision that the device does not support.

    Raises:
        ValueError: with a rule, the value and a remedy.
    """
    if config.precision == "16-mixed" and not has_gpu:
        msg = (
            "precision=16-mixed needs a GPU, since Lightning takes bfloat16 for it on CPUs; got "
            f"accelerator={config.accelerator} without one. Use precision=bf16-mixed."
        )
        raise ValueError(msg)


def check_growth(config: RunConfig, warmup_epochs: float) -> None:
    """Refuse a growing batch that cannot be trained with a warmup of this length [epochs].

    Raises:
        ValueError: with a rule, the value and a remedy.
    """
    schedule = config.schedule
    if not isinstance(schedule, GrowingBatch):
        return
    if early := early_milestones(schedule, warmup_epochs):
        msg = (
            "schedule.milestones must come after the warmup, during which the batch is constant; "
            f"got a milestone at epoch {early[0]}, a {warmup_epochs:g}-epoch warmup. Move it."
        )
        raise ValueError(msg)
    size = config.data.num_train_examples
    if not config.batch <= schedule.max_batch <= size:
        msg = (
            f"schedule.max_batch must be from batch={config.batch} to the epoch's {size} examples; "
            f"got schedule.max_batch={schedule.max_batch}. Change it."
        )
        raise ValueError(msg)
    if config.comm_hook.name == "post_local_sgd":
        msg = (
            "schedule=growing_batch needs gradients averaged over ranks at every step; got "
            "comm_hook=post_local_sgd. Use comm_hook=all_reduce."
        )
        raise ValueError(msg)
    if config.lr_rule.name == "adascale":
        msg = (
            "schedule=growing_batch needs a learning rate that does not follow the batch during "
            "training; got lr_rule=adascale. Use one of the two."
        )
        raise ValueError(msg)


def _check_nccl(hook: AllReduce | Hierarchical, config: RunConfig) -> None:
    if hook.nccl_algo is not None and config.accelerator == "cpu":
        msg = (
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            f"ring; got comm_hook.nccl_algo={hook.nccl_algo}, accelerator=cpu. Remove it."
        )
        raise ValueError(msg)


def _check_hierarchy(hook: Hierarchical, config: RunConfig) -> None:
    ranks, on_node = config.world_size, hook.ranks_per_node
    if ranks > on_node and ranks % on_node:
        msg = (
            "comm_hook.ranks_per_node must divide devices x num_nodes, so that all nodes have the "
            f"same number; got comm_hook.ranks_per_node={on_node}, {ranks} ranks. Usually it "
            "equals devices."
        )
        raise ValueError(msg)


def _check_local_steps(hook: PostLocalSGD, config: RunConfig) -> None:
    if config.world_size != hook.workers:
        msg = (
            "devices x num_nodes must equal comm_hook.workers, each of which takes local steps; "
            f"got devices={config.devices}, num_nodes={config.num_nodes}, "
            f"comm_hook.workers={hook.workers}. Train on {hook.workers} ranks."
        )
        raise ValueError(msg)
    beside = {
        "ema_decay": config.ema_decay is not None,
        "precision": config.precision == "16-mixed",
        "optimizer": config.optimizer.gradient_span is not None,
        "noise_span": noise_span(config) is not None,
        "loss_items": config.loss_items is not None,
    }
    if any(beside.values()):
        names = ", ".join(name for name, is_set in beside.items() if is_set)
        msg = (
            "comm_hook=post_local_sgd cannot be combined with methods that keep one state for all "
            "ranks: ema_decay, precision=16-mixed, optimizers with a gradient_span, a measured "
            "noise (noise_span), a mean over all items (loss_items); "
            f"got {names}. Change {names}, or use comm_hook=all_reduce."
        )
        raise ValueError(msg)


def _check_reproducible(config: RunConfig) -> None:
    if config.micro_batch == "auto":
        msg = (
            "micro_batch must be a number with reproducible=true, the same on every layout, "
            "because it changes the last bits; got micro_batch=auto. Set micro_batch."
        )
        raise ValueError(msg)
    beside = {
        f"comm_hook={config.comm_hook.name}": config.comm_hook.name != "all_reduce",
        "precision=16-mixed": config.precision == "16-mixed",
        f"optimizer={config.optimizer.name}": config.optimizer.gradient_span is not None,
        "a measured noise scale": noise_span(config) is not None,
    }
    if any(beside.values()):
        names = ", ".join(name for name, is_set in beside.items() if is_set)
        msg = (
            "reproducible=true cannot be combined with methods that sum in another order or "
            "rounding: a compressed or local communication hook, the loss scale of 16-mixed, "
            f"methods that compare micro-batches; got {names}. Use others, or reproducible=null."
        )
        raise ValueError(msg)


def _check_spans(spans: Mapping[str, int], config: RunConfig) -> None:
    (key, span), *others = spans.items()
    for other, value in others:
        if value != span:
            msg = (
                f"{other} must equal {key}, the size of the parts that are compared; got "
                f"{other}={value}, {key}={span}. Set both to the same number."
            )
            raise ValueError(msg)
    if config.micro_batch not in {"auto", span}:
        msg = (
            f"micro_batch must equal {key}, the size of the parts that are compared; got "
            f"micro_batch={config.micro_batch}, {key}={span}. Leave micro_batch=auto, or set "
            f"{key}={config.micro_batch}, which changes the experiment."
        )
        raise ValueError(msg)
    try:
        bn_span = config.bn_span if isinstance(config.bn_span, int) else 1
        split_global_batch(
            config.batch, world_size=config.world_size, micro_batch=span, bn_span=bn_span
        )
    except ValueError as error:
        msg = f"{error} The micro-batch is {key}={span}, the size of the parts that are compared."
        raise ValueError(msg) from None
    if compared := [name for name in spans if not name.startswith("perturbation")]:
        _check_comparable(compared[0], span, config)


def _check_comparable(key: str, span: int, config: RunConfig) -> None:
    if config.batch < 2 * span:
        lower = "noise_span" if key == "base_batch" else key
        msg = (
            f"batch must contain at least two spans of {key} examples, to compare "
            f"their gradients; got batch={config.batch}, {key}={span}. "
            f"Set {lower} to {max(1, config.batch // 2)} or less."
        )
        raise ValueError(msg)
    if config.gradient_clip is not None and key == "optimizer.gradient_span":
        msg = (
            "gradient_clip must be null with an optimizer that compares the gradients of parts of "
            f"the batch; got gradient_clip={config.gradient_clip}. Remove gradient_clip."
        )
        raise ValueError(msg)


def _check_module(config: RunConfig) -> None:
    """Refuse keys that do not fit the module, its optimizers or its metric."""
    if config.has_own_module:
        _check_own(config)
    elif config.loss_items is not None:
        msg = (
            "loss_items must be null with module=classifier, whose loss is a mean over examples; "
            f"got loss_items={config.loss_items!r}. Remove it."
        )
        raise ValueError(msg)
    elif config.model is None:
        msg = "model must be given with module=classifier; got model=null. Choose a model."
        raise ValueError(msg)
    if config.keeps_own_optimizer:
        _check_own_optimizer(config)
    elif config.base_lr is None:
        msg = (
            "base_lr must be given with an optimizer that replaces the module's own; got "
            f"optimizer={config.optimizer.name}, base_lr=null. Set base_lr."
        )
        raise ValueError(msg)
    if config.gradient_clip is not None and "gradient_clip_val" in config.trainer.flags:
        msg = (
            "gradient_clip and trainer.gradient_clip_val are one setting; got gradient_clip="
            f"{config.gradient_clip} and a trainer.gradient_clip_val. Remove one of them."
        )
        raise ValueError(msg)
    if config.metric != "val_accuracy" and config.metric_mode is None:
        msg = (
            "metric_mode must be max or min with a metric of your own, to say which is better; "
            f"got metric={config.metric}, metric_mode=null. Write metric_mode=max or min."
        )
        raise ValueError(msg)


def _check_own(config: RunConfig) -> None:
    read_by_ours = {
        "label_smoothing": config.label_smoothing,
        "zero_init_last_norm": config.zero_init_last_norm,
    }
    if names := ", ".join(name for name, value in read_by_ours.items() if value):
        msg = (
            f"{names} can be set with module=classifier only; got "
            f"module._target_={config.module.target}. Remove {names}, or use a setting of your "
            "module: +module.KEY=VALUE."
        )
        raise ValueError(msg)


def _check_own_optimizer(config: RunConfig) -> None:
    if config.base_lr is not None:
        msg = (
            "base_lr must be null with optimizer=module, which scales the module's own rates; got "
            f"base_lr={config.base_lr}. Remove it, or choose an optimizer."
        )
        raise ValueError(msg)
    if config.no_decay_on_norm_and_bias:
        msg = (
            "no_decay_on_norm_and_bias must be false with optimizer=module, where the module makes "
            "its own parameter groups; got true. Remove it, or choose an optimizer."
        )
        raise ValueError(msg)
    if config.lr_rule.name == "adascale":
        msg = (
            "lr_rule=adascale needs an optimizer whose rate it sets; got optimizer=module. "
            "Choose an optimizer."
        )
        raise ValueError(msg)


_TORCHS = "torch.optim."


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse a setting that cannot be intended; a user's own optimizer checks its own.

    Raises:
        ValueError: with a rule, the value and a remedy.
    """
    if "lr" in optimizer.settings:
        msg = (
            "optimizer.lr must be left to the run, which sets it at each step; got "
            f"optimizer.lr={optimizer.settings['lr']!r}. Set base_lr, the rate at base_batch."
        )
        raise ValueError(msg)
    if not (is_ours(optimizer.target) or optimizer.target.startswith(_TORCHS)):
        return
    for key, value in optimizer.settings.items():
        if key == "betas":
            _check_betas(value, 3 if optimizer.target.endswith(".vr_lamb") else 2)
        elif key in _RULES and not _RULES[key][0](value):
            msg = (
                f"optimizer.{key} must be {_RULES[key][1]}; got optimizer.{key}={value!r}. "
                "Change it."
            )
            raise ValueError(msg)


def _check_betas(value: Any, count: int) -> None:
    if isinstance(value, list | tuple) and len(value) == count and all(map(_is_fraction, value)):
        return
    msg = (
        f"optimizer.betas must be {count} numbers from 0 to below 1; got optimizer.betas="
        f"{value!r}. Change them."
    )
    raise ValueError(msg)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_not_negative(value: Any) -> bool:
    return _is_number(value) and value >= 0


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "momentum": (_is_fraction, "a number from 0 to below 1"),
    "weight_decay": (_is_not_negative, "a number, 0 or more"),
    "eps": (_is_not_negative, "a number, 0 or more"),
    "trust_coeff": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "floor": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    **{
        key: (lambda value: isinstance(value, bool), "true or false")
        for key in ("nesterov", "trust_clip", "bias_correction")
    },
    "max_grad_norm": (
        lambda value: value is None or (_is_number(value) and value > 0),
        "a number above 0, or null",
    ),
}
