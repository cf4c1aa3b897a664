"""Checks of methods that combine with any optimizer and model: which combinations are refused."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from sweeper.spec.batch import BatchPlan, BatchSplit, split_global_batch
from sweeper.spec.config import PostLocalSGD, RunConfig, is_ours
from sweeper.spec.exclusions import check_exclusions
from sweeper.spec.schedule import LRSchedule
from sweeper.spec.sentences import printable, several
from sweeper.spec.spans import method_spans
from sweeper.spec.trainer_settings import check_trainer


def check_methods(config: RunConfig) -> None:
    """Refuse methods that cannot be combined; ValueError with a rule, the value and a remedy."""
    check_trainer(config.trainer)
    check_precision(config, has_gpu=config.accelerator != "cpu")
    check_exclusions(config)
    for find_faults in (_optimizer_faults, _module_faults, _span_faults, _hook_faults):
        for sentence in find_faults(config):
            raise ValueError(printable(sentence))


def check_length(config: RunConfig) -> None:
    """Refuse a training of no length or of several; ValueError with what was given."""
    if len(given := config.lengths) == 1:
        return
    shown = ", ".join(f"{key}={number}" for key, number in given.items())
    msg = (
        "one of epochs, steps, examples and tokens must say how long the training is; got "
        f"{shown or 'epochs=null'}. {'Remove all but one' if given else 'Set one'}."
    )
    raise ValueError(msg)


def check_division(ranks: int, most: int, name: str) -> None:
    """Refuse more ranks than iterable data of this name can be divided among; ValueError."""
    if ranks > most:
        msg = (
            f"devices x num_nodes must be {most}{' or less' * (most > 1)} with {name}, which is "
            f"iterable only and cannot be divided among more ranks; got {ranks} ranks. Train on "
            f"{most}, or give the data set a length and indices, shard(num_shards, index), or more "
            "shards."
        )
        raise ValueError(msg)


def check_heads(*, width: int, heads: int, is_rotary: bool) -> None:
    """Refuse a GPT whose heads do not divide its width, into even numbers for rotary positions.

    ValueError with both.
    """
    if width % (heads * (1 + is_rotary)):
        twice = "2 x " * is_rotary
        msg = f"{twice}model.heads must divide model.width; got {heads=}, {width=}. Change one."
        raise ValueError(msg)


def check_tokens(config: RunConfig, split: BatchSplit) -> None:
    """Refuse a batch in tokens of which a step or a micro-batch may have no example; ValueError.

    A step has more than ``batch - longest`` tokens. A part of it that is as long as the longest
    example contains the beginning of one.
    """
    if not config.batch_unit or not (longest := config.longest_example):
        return
    parts = split.accumulation_steps * split.world_size
    if config.batch < longest * (1 if parts == 1 else parts + 1):
        most = max(1, config.batch // longest - 1)
        remedy = (
            f"Use a micro_batch that makes at most {most}" if most > 1 else "Use a larger batch"
        )
        msg = (
            "a batch in tokens must hold the longest example, and of several micro-batches that "
            f"many and one more; got batch={config.batch}, {several(parts, 'micro-batch')}, "
            f"an example of {several(longest, 'token')}. {remedy}."
        )
        raise ValueError(msg)


def check_precision(config: RunConfig, *, has_gpu: bool) -> None:
    """Refuse a precision that the device does not support.

    ValueError with a rule, the value and a remedy.
    """
    if config.precision == "16-mixed" and not has_gpu:
        msg = (
            "precision=16-mixed needs a GPU, since Lightning takes bfloat16 for it on CPUs; got "
            f"accelerator={config.accelerator} without one. Use precision=bf16-mixed."
        )
        raise ValueError(msg)


def check_branch(config: RunConfig, *, is_counted: bool) -> None:
    """Refuse a branch whose data have no place to begin at; ValueError with a remedy.

    Args:
        config: of the run.
        is_counted: whether its data have an order of their own.
    """
    if not (branch := config.branch):
        return
    if is_counted:
        msg = (
            "branch must be null with data that are iterable only, which begin at their start; got "
            f"branch={branch.run}@{branch.epochs}, data={config.data.name}. Remove branch."
        )
        raise ValueError(msg)


def check_growth_starts(config: RunConfig, plan: BatchPlan, schedule: LRSchedule) -> None:
    """Refuse a batch that would grow in the warmup; ValueError with both and a remedy."""
    if not config.growing or not config.growing.milestones:
        return
    first = Fraction(str(config.growing.milestones[0]))
    epoch, step = plan.find_step(first, config.growth_unit)
    before = plan.steps_before(epoch) + step
    if before < schedule.warmup_steps:
        keys = {"seesaw": "schedule.at", "batch_warmup": "schedule.positions"}
        msg = (
            f"{keys.get(config.schedule.name, 'schedule.milestones')} must come after the warmup, "
            "during which the batch is constant; got a milestone at epoch "
            f"{plan.position(before):g}, a {schedule.warmup_epochs:g}-epoch warmup. Move it."
        )
        raise ValueError(msg)


def check_cooldown(config: RunConfig, starts: Fraction) -> None:
    """Refuse a length whose cooldown starts within a step; ValueError with the nearest that fit.

    `starts` is where it starts [steps].
    """
    if starts.denominator == 1:
        return
    ((key, length),) = config.lengths.items()
    each = Fraction(1, config.batch if key == "examples" else 1)  # or whole steps
    unit = math.lcm((starts / length).denominator, each.denominator)
    nearest = (length // unit * unit, (length // unit + 1) * unit)
    msg = (
        "a cooldown must begin after a whole step, for lengths to share those before it; got "
        f"{key}={length} of batch={config.batch}, whose cooldown begins after {float(starts):g} "
        f"steps. Nearest {key} that work: {', '.join(f'{n}' for n in nearest if n)}; or take "
        f"another cooldown{', or lengths_unit=examples' * (key == 'epochs')}."
    )
    if key == "examples" and (tokens := config.data.tokens_per_example):
        msg += f" An example is {tokens} tokens."
    raise ValueError(msg)


def check_largest_batch(config: RunConfig, max_batch: int) -> None:
    """Refuse a batch that would grow beyond the epoch; ValueError with what was given."""
    size, growing = config.data.num_train_examples, config.growing
    if not config.batch <= max_batch <= size:
        is_given = hasattr(config.schedule, "max_batch")
        most = "schedule.max_batch" if is_given else "batch x schedule.factor for each growth"
        factor = "" if is_given or not growing else f", schedule.factor={growing.factor}"
        msg = (
            f"{most} must be from batch={config.batch} to the epoch's {size} examples; "
            f"got {most}={max_batch}{factor}. Change it."
        )
        raise ValueError(msg)


def _hook_faults(config: RunConfig) -> Iterator[str]:
    hook, ranks = config.comm_hook, config.world_size
    nccl_algo = getattr(hook, "nccl_algo", None)
    if nccl_algo is not None and config.accelerator == "cpu":
        yield (
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            f"ring; got comm_hook.nccl_algo={nccl_algo}, accelerator=cpu. Remove it."
        )
    in_node = getattr(hook, "ranks_per_node", None)
    if in_node is not None and ranks > in_node and ranks % in_node:
        yield (
            "comm_hook.ranks_per_node must divide devices x num_nodes, so that all nodes have the "
            f"same number; got comm_hook.ranks_per_node={in_node}, {ranks} ranks. "
            "Usually it equals devices, as null does."
        )
    if isinstance(hook, PostLocalSGD) and ranks != hook.workers:
        yield (
            "devices x num_nodes must equal comm_hook.workers, each of which takes local steps; "
            f"got devices={config.devices}, num_nodes={config.num_nodes}, "
            f"comm_hook.workers={hook.workers}. Train on {hook.workers} ranks."
        )


def _span_faults(config: RunConfig) -> Iterator[str]:
    yield from _slice_faults(config)
    if not (spans := method_spans(config)):
        return
    (key, span), *others = spans.items()
    for other, value in others:
        if value != span:
            yield (
                f"{other} must equal {key}, the size of the parts that are compared; got "
                f"{other}={value}, {key}={span}. Set both to the same number."
            )
    if config.micro_batch not in {"auto", span}:
        yield (
            f"micro_batch must equal {key}, the size of the parts that are compared; got "
            f"micro_batch={config.micro_batch}, {key}={span}. Leave micro_batch=auto, or set "
            f"{key}={config.micro_batch}, which changes the experiment."
        )
    bn_span = config.bn_span if isinstance(config.bn_span, int) else 1
    try:
        split_global_batch(
            config.batch, world_size=config.world_size, micro_batch=span, bn_span=bn_span
        )
    except ValueError as error:
        yield f"{error} The micro-batch is {key}={span}, the size of the parts that are compared."
    single = {"perturbation.gradient_span"}  # to which one part is as good as several
    if not config.optimizer.weighs_gradients:
        single.add("optimizer.gradient_span")
    compared = next((name for name in spans if name not in single), None)
    if compared and config.batch < 2 * span:
        lower = "noise_span" if compared == "base_batch" else compared
        yield (
            f"batch must contain at least two spans of {compared} examples, to compare "
            f"their gradients; got batch={config.batch}, {compared}={span}. "
            f"Set {lower} to {max(1, config.batch // 2)} or less."
        )


def _slice_faults(config: RunConfig) -> Iterator[str]:
    """Slices with a delay of their own that are not whole spans and micro-batches."""
    slices, span = config.num_slices, next(iter(method_spans(config).values()), None)
    micro_batch = span if config.micro_batch == "auto" else config.micro_batch
    for key, size in {"bn_span": config.bn_span, "micro_batch": micro_batch}.items():
        unit = slices * (size if isinstance(size, int) else 1)
        if slices > 1 and config.batch % unit:
            yield (
                f"batch must be a multiple of the {slices} slices of gradient_delay, each of whole "
                f"multiples of {key}: {unit}; got batch={config.batch}, {key}={size}. Use "
                f"batch={-(-config.batch // unit) * unit}, or a smaller {key}."
            )


def _module_faults(config: RunConfig) -> Iterator[str]:
    """Keys that do not fit the module, its optimizers or its metric."""
    ours_only = ("label_smoothing", "zero_init_last_norm")
    names = ", ".join(name for name in ours_only if getattr(config, name))
    if config.has_own_module and names:
        yield (
            f"{names} can be set with module=classifier only; got "
            f"module._target_={config.module.target}. Remove {names}, or use a setting of your "
            "module: +module.KEY=VALUE."
        )
    if config.has_own_module and config.checkpoint_activations:
        yield (
            "checkpoint_activations must be null with a module of your own, which knows what to "
            f"recompute; got module._target_={config.module.target}. Remove it, and use "
            "torch.utils.checkpoint in the module: dropout layers draw the same masks again."
        )
    if not config.has_own_module and config.loss_items is not None:
        yield (
            "loss_items must be null with module=classifier, whose loss is a mean over examples; "
            f"got loss_items={config.loss_items!r}. Remove it."
        )
    if config.batch_unit and config.bn_span is not None:
        yield (
            "batch_unit=tokens needs a module without BatchNorm, whose spans are examples; got "
            f"bn_span={config.bn_span}. Give batches in examples."
        )
    masked = config.data.tokens_per_example and config.data.settings.get("masked")
    if masked and config.model and config.model.target.endswith(".LSTM"):
        yield (
            "data.masked must be 0 with a model that sees only the tokens before one; got "
            f"data.masked={masked}, model=lstm. Use model=gpt, which then sees all, or your own."
        )
    is_moved = not config.has_own_module and config.data.tokens_per_example is None
    if config.perturbation.name == "conadv" and not is_moved:
        yield (
            "perturbation=conadv needs module=classifier, and inputs that can be moved a little, "
            f"such as images; got module._target_={config.module.target}, "
            f"data={config.data.name}. Use perturbation=sam."
        )
    if not config.has_own_module and config.model is None:
        yield "model must be given with module=classifier; got model=null. Choose a model."
    if config.keeps_own_optimizer:
        yield from _own_optimizer_faults(config)
    elif config.base_lr is None:
        yield (
            "base_lr must be given with an optimizer that replaces the module's own; got "
            f"optimizer={config.optimizer.name}, base_lr=null. Set base_lr."
        )
    if config.ema_rule and config.ema_decay is None:
        yield "ema_rule=scaled needs an average; got ema_decay=null. Set ema_decay."
    if config.metric != "val_accuracy" and config.metric_mode is None:
        yield (
            "metric_mode must be max or min with a metric of your own, to say which is better; "
            f"got metric={config.metric}, metric_mode=null. Write metric_mode=max or min."
        )


def _own_optimizer_faults(config: RunConfig) -> Iterator[str]:
    if config.base_lr is not None:
        yield (
            "base_lr must be null with optimizer=module, which scales the module's own rates; got "
            f"base_lr={config.base_lr}. Remove it, choose an optimizer, or set your class's own "
            "argument, such as module.lr=0.1."
        )
    if config.no_decay_on_norm_and_bias:
        yield (
            "no_decay_on_norm_and_bias must be false with optimizer=module, where the module makes "
            "its own parameter groups; got true. Remove it, or choose an optimizer."
        )


def _optimizer_faults(config: RunConfig) -> Iterator[str]:
    """Settings of conf/'s optimizers that cannot be intended: torch accepts some that diverge."""
    optimizer = config.optimizer
    if "lr" in optimizer.settings:
        yield (
            "optimizer.lr must be left to the run, which sets it at each step; got "
            f"optimizer.lr={optimizer.settings['lr']!r}. Set base_lr, the rate at base_batch."
        )
    known = ("torch.optim.", "schedulefree.", "pytorch_optimizer.")
    if not (is_ours(optimizer.target) or optimizer.target.startswith(known)):
        return  # a user's own checks its settings itself
    num_betas = 3 if optimizer.target.endswith(".vr_lamb") else 2
    for key, value in optimizer.settings.items():
        if key == "betas":
            is_list = isinstance(value, list | tuple) and len(value) == num_betas
            if not (is_list and all(_RULES["momentum"][0](beta) for beta in value)):
                yield (
                    f"optimizer.betas must be {num_betas} numbers from 0 to below 1; got "
                    f"optimizer.betas={value!r}. Change them."
                )
        elif key in _RULES and not _RULES[key][0](value):
            yield (
                f"optimizer.{key} must be {_RULES[key][1]}; got optimizer.{key}={value!r}. "
                "Change it."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


#: By setting, whether a value is allowed, and the rule in words.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "momentum": (lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to below 1"),
    "weight_decay": (lambda value: _is_number(value) and value >= 0, "a number, 0 or more"),
    "eps": (lambda value: _is_number(value) and value >= 0, "a number, 0 or more"),
    "trust_coeff": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "adjust_lr_fn": (
        lambda value: value in ("original", "match_rms_adamw", "rms_to_rms"),
        "one of original, match_rms_adamw, rms_to_rms",
    ),
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
