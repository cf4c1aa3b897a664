"""What excludes what among methods: one table, each row with its reason; the docs print it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sweeper.spec.config import RunConfig
from sweeper.spec.schedules import Growing, OwnSchedule
from sweeper.spec.sentences import printable
from sweeper.spec.spans import noise_span


class Exclusion(NamedTuple):
    """A method, those it cannot be combined with (a comma between), the reason, and a remedy."""

    method: str
    others: str
    rule: str
    remedy: str


def find_methods(config: RunConfig) -> dict[str, str]:
    """By method that a config asks for, the words that ask for it."""
    rule, schedule, optimizer = config.lr_rule.name, config.schedule, config.optimizer
    hook, perturbation, branch = config.comm_hook.name, config.perturbation.name, config.branch
    counted = [f"{key}={number}" for key, number in config.lengths.items() if key != "epochs"]
    counted += [f"warmup_unit={config.warmup_unit}"] * bool(config.warmup_unit)
    begun = branch and f"branch={branch.run}@{branch.epochs}"
    clipped = "gradient_clip_val" in config.trainer.flags
    delays = config.gradient_delay
    late = f"gradient_delay={[*delays] if isinstance(delays, tuple) else delays}"
    is_late = getattr(schedule, "clock", "") == "warmup"
    shard_settings = {key: getattr(config, key) for key in ("fsdp_blocks", "fsdp_gradients")}
    noise = f"noise_span={config.noise_span}" if config.noise_span else "a measured noise scale"
    asked: dict[str, tuple[str | None, object]] = {
        "AdaScale": ("lr_rule=adascale", rule == "adascale"),
        "adam_sde": ("lr_rule=adam_sde", rule == "adam_sde"),
        "a branch": (begun, branch),
        "lengths": (f"lengths={[*(config.trunk or ())]}", config.trunk),
        "a schedule other than wsd": (f"schedule={schedule.name}", schedule.name != "wsd"),
        "a warmup in percent": ("warmup_unit=percent", config.warmup_unit == "percent"),
        "a growing batch": (f"schedule={schedule.name}", isinstance(schedule, Growing)),
        "growth by noise": (
            "schedule" + (".growth=measured" if config.growing else "=adaptive_batch"),
            getattr(schedule, "growth", "") == "measured",
        ),
        "a user's schedule": (f"schedule={schedule.name}", isinstance(schedule, OwnSchedule)),
        "a decay from the warmup's end": (f"schedule={schedule.name}", is_late),
        "steps or examples": (", ".join(counted), counted),
        "a clock of steps": (", ".join(counted), any("steps" in words for words in counted)),
        "evaluate_every": (
            f"evaluate_every={config.evaluate_every}",
            config.evaluate_every is not None,
        ),
        "EMA": (f"ema_decay={config.ema_decay}", config.ema_decay is not None),
        "an averaging optimizer": (f"optimizer={optimizer.name}", optimizer.averages_weights),
        "an optimizer of parts": (
            f"optimizer={optimizer.name}",
            optimizer.gradient_span is not None,
        ),
        "the module's optimizers": ("optimizer=module", config.keeps_own_optimizer),
        "wd_rule=timescale": (f"wd_rule={config.wd_rule}", config.wd_rule),
        "gradient_clip": (
            f"gradient_clip={config.gradient_clip}",
            config.gradient_clip is not None,
        ),
        "the Trainer's clipping": ("trainer.gradient_clip_val", clipped),
        "gradient_delay": (late, delays is not None),
        "a delay for each slice": (late, isinstance(delays, tuple)),
        "SAM": ("perturbation=sam", perturbation == "sam"),
        "ConAdv": ("perturbation=conadv", perturbation == "conadv"),
        "16-mixed": ("precision=16-mixed", config.precision == "16-mixed"),
        "measured noise": (noise, noise_span(config) is not None),
        "loss_items": (f"loss_items={config.loss_items}", config.loss_items is not None),
        "post-local SGD": ("comm_hook=post_local_sgd", hook == "post_local_sgd"),
        "a communication hook": (f"comm_hook={hook}", hook != "all_reduce"),
        "micro_batch=auto": ("micro_batch=auto", config.micro_batch == "auto"),
        "SOAP": (f"optimizer={optimizer.name}", optimizer.target.endswith(".SOAP")),
        "compile=true": ("compile=true", config.compile),
        "strategy=fsdp": ("strategy=fsdp", config.strategy == "fsdp"),
        "strategy=ddp": ("strategy=ddp", config.strategy is None),
        "settings of fsdp": (
            ", ".join(f"{key}={value}" for key, value in shard_settings.items() if value),
            any(shard_settings.values()),
        ),
        "reproducible=true": ("reproducible=true", config.reproducible),
        "a batch in tokens": ("batch_unit=tokens", config.batch_unit),
    }
    return {name: str(words) for name, (words, is_asked) in asked.items() if is_asked}


EXCLUSIONS = (
    Exclusion(
        "a branch",
        "a decay from the warmup's end",
        "a branch needs a rate that does not count from the end of its parent's warmup",
        "Train the parent and the branch with schedule=constant or schedule=wsd, or with "
        "schedule.clock=start.",
    ),
    Exclusion(
        "a branch",
        "a clock of steps",
        "a branch and its parent take other numbers of steps for the same examples",
        "Set epochs, examples or tokens, and leave warmup_unit=epochs.",
    ),
    Exclusion(
        "a branch",
        "a growing batch, a user's schedule, AdaScale, the module's optimizers, post-local SGD",
        "a branch needs a batch and a rate that do not depend on all steps since the start, and no "
        "state of single ranks",
        "Remove one of them.",
    ),
    Exclusion(
        "lengths",
        "a schedule other than wsd, a warmup in percent, AdaScale, post-local SGD",
        "lengths share the steps before their cooldowns, which must be the same for all of them, "
        "and need no state of single ranks",
        "Remove one of them.",
    ),
    Exclusion(
        "steps or examples",
        "growth by noise, AdaScale",
        "what decides on its batch or its length in training must count in epochs",
        "Set epochs, and leave warmup_unit=epochs.",
    ),
    Exclusion(
        "a growing batch",
        "AdaScale",
        "a growing batch needs a learning rate that does not follow the batch during training",
        "Use one of the two.",
    ),
    Exclusion(
        "evaluate_every",
        "post-local SGD, AdaScale",
        "evaluate_every must be null with methods that average weights over ranks, or decide "
        "whether to end, after an epoch",
        "Remove evaluate_every.",
    ),
    Exclusion(
        "gradient_delay",
        "gradient_clip, the Trainer's clipping, AdaScale, an optimizer of parts, SAM, "
        "growth by noise, post-local SGD, 16-mixed",
        "gradient_delay must be null with methods that use the gradient of the step itself, or "
        "skip steps",
        "Use one of the two.",
    ),
    Exclusion(
        "a delay for each slice",
        "strategy=fsdp, ConAdv",
        "a delay for each slice puts older weights into the whole model",
        "Use one number for all, or remove the other.",
    ),
    Exclusion(
        "post-local SGD",
        "a growing batch, EMA, ConAdv, 16-mixed, an optimizer of parts, an averaging optimizer, "
        "measured noise, loss_items",
        "comm_hook=post_local_sgd cannot be combined with methods that keep one state for all "
        "ranks, or need gradients averaged over ranks at every step",
        "Remove the other, or use comm_hook=all_reduce.",
    ),
    Exclusion(
        "a batch in tokens",
        "micro_batch=auto",
        "micro_batch must be a number of tokens with batch_unit=tokens, of which memory cannot be "
        "predicted",
        "Set micro_batch.",
    ),
    Exclusion(
        "a batch in tokens",
        "a growing batch, growth by noise, AdaScale, SAM, an optimizer of parts, measured noise, "
        "a branch, reproducible=true",
        "batch_unit=tokens cannot be combined with methods that need steps or parts of a fixed "
        "number of examples, or change the batch",
        "Give batches in examples.",
    ),
    Exclusion(
        "reproducible=true",
        "micro_batch=auto",
        "micro_batch must be a number with reproducible=true, the same on every layout, because it "
        "changes the last bits",
        "Set micro_batch.",
    ),
    Exclusion(
        "reproducible=true",
        "a communication hook, 16-mixed, an optimizer of parts, measured noise",
        "reproducible=true cannot be combined with methods that sum in another order or rounding: "
        "a compressed or local communication hook, the loss scale of 16-mixed, methods that "
        "compare micro-batches",
        "Use others, or reproducible=null.",
    ),
    Exclusion(
        "compile=true",
        "reproducible=true",
        "compile=true cannot be combined with reproducible=true, as compiled code may sum in an "
        "order of its own for each size",
        "Remove one of them.",
    ),
    Exclusion(
        "strategy=fsdp",
        "reproducible=true, a communication hook, SOAP, ConAdv, 16-mixed",
        "strategy=fsdp cannot be combined with what needs whole weights or gradients on each rank",
        "Use strategy=ddp, or remove the other.",
    ),
    Exclusion(
        "settings of fsdp",
        "strategy=ddp",
        "fsdp_blocks and fsdp_gradients say how strategy=fsdp shards",
        "Add strategy=fsdp, or remove them.",
    ),
    Exclusion(
        "gradient_clip",
        "an optimizer of parts",
        "gradient_clip must be null with an optimizer that uses the gradients of parts of the "
        "batch",
        "Remove gradient_clip.",
    ),
    Exclusion(
        "gradient_clip",
        "the Trainer's clipping",
        "gradient_clip and trainer.gradient_clip_val are one setting",
        "Remove one of them.",
    ),
    Exclusion(
        "an averaging optimizer",
        "EMA",
        "ema_decay must be null with an optimizer that has weights of its own to evaluate",
        "Remove ema_decay.",
    ),
    Exclusion(
        "adam_sde",
        "an averaging optimizer",
        "lr_rule=adam_sde needs an optimizer whose betas are all of its moments, and whose first "
        "is not of its average",
        "Use lr_rule=half_life.",
    ),
    Exclusion(
        "AdaScale",
        "the module's optimizers",
        "lr_rule=adascale needs an optimizer whose rate it sets",
        "Choose an optimizer.",
    ),
    Exclusion(
        "wd_rule=timescale",
        "AdaScale",
        "wd_rule=timescale needs a rate that is known before the run",
        "Use wd_rule=none.",
    ),
)


def check_exclusions(config: RunConfig) -> None:
    """Refuse methods that exclude each other; ValueError with the reason, both and a remedy."""
    for sentence in _refusals(find_methods(config)):
        raise ValueError(sentence)


def why_no_branch(config: RunConfig) -> str:
    """Why no branch can begin from the checkpoints that a run keeps by epoch; empty if one can."""
    if isinstance(kept := config.keep_checkpoint, bool) or config.branch:
        return ""
    words = kept if isinstance(kept, str) else f"[{','.join(map(str, kept))}]"
    asked = {**find_methods(config), "a branch": f"keep_checkpoint={words}"}
    first = next(_refusals(asked), "")
    return f"No branch can begin from the kept checkpoints: {first}" if first else ""


def _refusals(asked: Mapping[str, str]) -> Iterator[str]:
    for row in EXCLUSIONS:
        others = [asked[name] for name in row.others.split(", ") if name in asked]
        if row.method in asked and others:
            words = ", ".join([asked[row.method], *others])
            yield printable(f"{row.rule}; got {words}. {row.remedy}")


def list_exclusions() -> Iterator[str]:
    """The docs' table of methods that exclude each other, in lines of Markdown."""
    yield from ("| method | not with | because |", "| --- | --- | --- |")
    for row in EXCLUSIONS:
        yield f"| {row.method} | {row.others} | {row.rule} |"
