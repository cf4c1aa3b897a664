"""The typed config of a run: every key as users write it, validated once on entry."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from sweeper.spec.hardware import Hardware
from sweeper.spec.import_path import call
from sweeper.spec.lr_rules import LRRule
from sweeper.spec.schedule import warmup_length
from sweeper.spec.schedules import BatchByRate, BatchWarmup, GrowingBatch, Schedule, Seesaw, part_of
from sweeper.spec.sentences import find_unstorable, read_model
from sweeper.spec.text_lengths import TEXT, to_examples
from sweeper.spec.trainer_settings import TrainerSettings
from sweeper.spec.values import (
    LARGEST,
    Budget,
    Count,
    Epochs,
    Fraction,
    Index,
    InStep,
    Interval,
    ListOf,
    NotNegative,
    Positive,
    Price,
    Rule,
    Saving,
    Settings,
    Switch,
    Text,
    Threads,
)

#: The keys that say how long a training is.
LENGTHS = ("epochs", "steps", "examples", "tokens")
NcclAlgo = Literal["ring", "tree"]

#: The target that keeps a user's optimizers.
OWN_OPTIMIZER = "module.configure_optimizers"
#: Stands in a config for the folder of a run's own files, which only its processes know.
OUTPUT_FOLDER = "${hydra:runtime.output_dir}"


class AllReduce(Settings):
    """The mean over ranks in the gradients' own precision; `nccl_algo` None lets NCCL choose."""

    name: Literal["all_reduce"]
    nccl_algo: NcclAlgo | None


class BFloat16(Settings):
    """Gradients are exchanged as bfloat16."""

    name: Literal["bf16"]


class Float16(Settings):
    """Gradients are exchanged as float16."""

    name: Literal["fp16"]


class Hierarchical(Settings):
    """Sums in nodes of `ranks_per_node` ranks (None: `devices`), all-reduced between nodes."""

    name: Literal["hierarchical"]
    ranks_per_node: InStep | None
    nccl_algo: NcclAlgo | None


class Hybrid(Settings):
    """Hierarchical for buckets of gradients up to `threshold_mib`, all-reduce for larger."""

    name: Literal["hybrid"]
    ranks_per_node: InStep | None
    threshold_mib: Positive
    nccl_algo: NcclAlgo | None


class PostLocalSGD(Settings):
    """From `start_epoch` on, ranks step locally and average weights every `local_steps` steps."""

    name: Literal["post_local_sgd"]
    workers: InStep
    local_steps: Count
    start_epoch: Epochs


class PowerSGD(Settings):
    """Low-rank gradients with error feedback, after a plain all-reduce before `start_step`."""

    name: Literal["powersgd"]
    rank: Count
    start_step: Annotated[int, Field(ge=2, le=LARGEST), Rule("a whole number, 2 or more")]


CommHook = Annotated[
    AllReduce | BFloat16 | Float16 | Hierarchical | Hybrid | PostLocalSGD | PowerSGD,
    Field(discriminator="name"),
]


def is_ours(target: str) -> bool:
    """Whether a dotted path names something in our own packages."""
    return target.startswith(("lightning_modules.", "sweeper."))


def target_name(target: str) -> str:
    """The name of a class; of a user's function, such as `from_dataset`, with that of its place."""
    *places, name = target.split(".")
    is_plain = is_ours(target) or not name[:1].islower()
    return ".".join([*([] if is_plain else places[-1:]), name])


class Component(Settings, extra="allow"):
    """A class or function, and the arguments that it is called with.

    Attributes:
        target: its dotted path.
        choice: the name of this choice, if a class serves several.
    """

    target: Text = Field(alias="_target_")
    choice: Text | None = Field(alias="name", default=None)

    @property
    def name(self) -> str:
        """Its name in tables: its `name` if given, otherwise its class."""
        return self.choice or target_name(self.target)

    @property
    def group(self) -> dict[str, Any]:
        """Its group in the config, without the keys that are no arguments."""
        return {"_target_": self.target, **self.settings}

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the constructor."""
        return _arguments(self)

    def build(self, *args: Any, **more: Any) -> Any:
        """The object that this describes.

        Args:
            args: positional arguments, given first.
            more: keyword arguments in addition to the settings, over which they take precedence.

        Raises:
            ValueError: if the target cannot be imported or does not take these arguments.
        """
        return call(self.target, *args, settings={**self.settings, **more})


class Logger(Settings, extra="allow"):
    """A Lightning logger; `target` is the dotted path of its class, None for no logger."""

    target: Text | None = Field(alias="_target_")

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the constructor."""
        return _arguments(self)


def _named_logger(given: Any) -> Any:
    """A logger's group of those by name, which projects with Hydra have."""
    if not isinstance(given, Mapping) or given.get("_target_"):
        return given
    named = [
        group
        for group in given.values()
        if isinstance(group, Mapping) and isinstance(group.get("_target_"), str)
    ]
    return next(iter(named), {"_target_": None} if "_target_" in given else given)


def _arguments(of: Settings, *, without: str = "about") -> dict[str, Any]:
    settings = of.model_dump(by_alias=True, exclude_unset=True)
    return {key: value for key, value in settings.items() if key not in {"_target_", without}}


class Data(Component):
    """The data set.

    Attributes:
        num_train_examples: training examples in an epoch [examples].
        about: a remark for readers of tables; not an argument of the constructor.
    """

    num_train_examples: Count
    about: Text | None = None

    @property
    def tokens_per_example(self) -> int | None:
        """Length of a text's sequences [tokens]; None for other data."""
        return self.settings["length"] if self.target == TEXT else None


class Optimizer(Component):
    """The optimizer. Its name is not an argument of the constructor.

    Attributes:
        gradient_span: examples whose mean gradient it uses separately; None if it uses only the
            gradient of the whole batch.
    """

    gradient_span: InStep | None = None

    @property
    def weighs_gradients(self) -> bool:
        """Whether it weights gradients by how far parts of the batch agree."""
        return "floor" in self.settings

    @property
    def averages_weights(self) -> bool:
        """Whether it is known to evaluate other weights than those it trains with."""
        return self.target.startswith("schedulefree.")

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the constructor, except the parameters and the learning rate."""
        return _arguments(self, without="name")

    @property
    def is_normalised(self) -> bool | None:
        """Whether the length of a step does not depend on the gradient's; None if not known."""
        if self.target == "torch.optim.SGD" or self.target.endswith(".vr_sgd"):
            return False
        return True if {"betas", "trust_coeff"} & self.settings.keys() else None


class NoPerturbation(Settings):
    """Descend on the loss itself."""

    name: Literal["none"]


class SAM(Settings):
    """The gradient at the highest loss within `rho`, separately per `gradient_span` examples."""

    name: Literal["sam"]
    rho: Positive
    gradient_span: InStep


class ConAdv(Settings):
    """Adversarial inputs within `radius`, made with the weights of `stale_steps` steps ago."""

    name: Literal["conadv"]
    radius: Positive
    stale_steps: Index


Perturbation = Annotated[NoPerturbation | SAM | ConAdv, Field(discriminator="name")]


class Predicted(Settings):
    """The predicted duration of a run in a single attempt; 9 runs of 10 lie within the bounds.

    Attributes:
        s: the middle estimate [seconds].
        least_s: lower bound [seconds].
        most_s: upper bound [seconds].
    """

    s: Positive
    least_s: Positive
    most_s: Positive
    names: ClassVar = ("predicted_s", "predicted_least_s", "predicted_most_s")

    @property
    def columns(self) -> dict[str, float]:
        """The columns of the run's row that hold it."""
        return dict(zip(self.names, (self.s, self.least_s, self.most_s), strict=True))


class Start(Settings):
    """Where a run begins on its trunk: after `steps` that another run has trained for both."""

    run: Text
    steps: Count


class Facts(Settings):
    """What the program finds out about a run: stored beside its config, and no keys of users.

    Attributes:
        guarantees: those found to hold for a user's module.
        data_order: `counted` for data without indices.
        val_batch: examples of a validation batch, where a user's data have no size of their own.
        in_float32: whether a user's module computes in float32, whatever the precision.
        own_settings: the numbers of each group of the module's own optimizers; null for those that
            its schedulers change.
        predicted: the duration, if the time of such runs is known.
        predicted_memory_gib: the same for memory [GiB].
        start: where it begins on its trunk; None from the start.
    """

    guarantees: list[Text] | None = None
    data_order: Literal["counted"] | None = None
    val_batch: Count | None = None
    in_float32: Switch | None = None
    own_settings: list[dict[str, Any]] | None = None
    predicted: Predicted | None = None
    predicted_memory_gib: Positive | None = None
    start: Start | None = None


class Branch(Settings):
    """Where a run begins, if not at the start: after `epochs` of a run whose batch is `batch`."""

    run: Text
    epochs: Positive
    batch: InStep


_SettingOfClass = Annotated[str, Field(pattern=r"^(data|module|model|trainer)\.[\w.]+$")]
_OR_NONE = BeforeValidator(lambda given: None if given == "none" else given)


class Scientific(Settings):
    """The keys that can change a run's numbers beyond rounding: they define its identity."""

    module: Component
    data: Data
    model: Component | None = None  # only our classifier reads it
    optimizer: Optimizer
    lr_rule: LRRule
    schedule: Schedule
    perturbation: Perturbation
    comm_hook: CommHook
    trainer: TrainerSettings
    batch: InStep
    batch_unit: Annotated[  # of examples of one length they are read as examples
        Literal["tokens"] | None,
        BeforeValidator(lambda given: None if given == "examples" else given),
        Rule("one of examples, tokens"),
    ] = None
    epoch_tokens: Count | None = None  # filled in if batches are in tokens, as the next
    longest_example: Count | None = None  # in tokens
    warmup: NotNegative
    warmup_unit: Annotated[
        Literal["steps", "examples", "percent"] | None,  # tokens are read as examples
        BeforeValidator(lambda given: None if given == "epochs" else given),
        Rule("one of epochs, steps, examples, tokens, percent"),
    ] = None
    wd_rule: Annotated[Literal["timescale"] | None, _OR_NONE, Rule("none or timescale")] = None
    ema_rule: Annotated[Literal["scaled"] | None, _OR_NONE, Rule("none or scaled")] = None
    warmup_start: Literal["base", "constant", "horovod", "zero"]
    warmup_workers: InStep | None = None
    base_lr: Positive | None = None
    base_batch: InStep
    epochs: Count | None
    steps: Count | None = None
    examples: Count | None = None
    tokens: Annotated[Count | None, Field(exclude=True)] = None  # read as examples
    seed: Index
    bn_span: Annotated[  # auto is known once the module is
        InStep | Literal["micro"] | None,
        BeforeValidator(lambda given: "micro" if given == "auto" else given),
    ]
    loss_span: Literal["micro"] | None = None  # filled in where a user's micro-batch matters
    precision: Literal["16-mixed", "32-true", "64-true", "bf16-mixed"]
    label_smoothing: Fraction
    no_decay_on_norm_and_bias: Switch = False
    zero_init_last_norm: Switch = False
    gradient_clip: Positive | None = None
    ema_decay: Fraction | None = None
    noise_span: InStep | None = None
    update_angle: Switch = False
    gradient_delay: Annotated[
        Count | Annotated[ListOf[Index], Field(min_length=1)] | None,
        Rule("a whole number, 1 or more, a list with one for each slice, such as [0,1,2], or null"),
    ] = None
    loss_ceiling: Positive | None = None
    loss_items: Text | None = None
    evaluate_every: Interval | None = None
    branch: Annotated[Branch | None, Rule("RUN_ID@EPOCHS of a run, or @EPOCHS, or null")] = None


class Incidental(Settings):
    """The keys that set where, how fast and under what name a run trains, not its numbers."""

    logger: Annotated[Logger, BeforeValidator(_named_logger)]
    devices: InStep
    num_nodes: InStep
    strategy: Annotated[
        Literal["fsdp"] | None,
        BeforeValidator(lambda given: None if given == "ddp" else given),
        Rule("ddp or fsdp"),
    ] = None
    fsdp_blocks: Annotated[
        ListOf[Text] | None, Rule("a list of classes of layers, such as [Block], or null")
    ] = None
    fsdp_gradients: Annotated[
        Literal["sharded"] | None,
        BeforeValidator(lambda given: None if given == "whole" else given),
        Rule("whole or sharded"),
    ] = None
    compile: Switch | None = None
    checkpoint_activations: Switch | None = None
    accelerator: Literal["auto", "cpu", "gpu"]
    threads: Threads
    micro_batch: InStep | Literal["auto"]
    micro_batch_limit: InStep
    memory_limit_gib: Positive | None = None
    reproducible: Switch | None = None  # another order of the same sums: differs only by rounding
    timeout_s: Positive | None = None
    results: Text
    twin_of: Text | None = None
    tags: Text | None = None
    incidental: Annotated[
        ListOf[_SettingOfClass] | None,
        Rule("a list of settings of your own classes, such as [data.cache_dir], or null"),
    ] = None
    resolvers: Annotated[
        ListOf[Text] | None,
        Rule("a list of modules that register resolvers, such as [myproj.resolvers], or null"),
    ] = None
    trusted_classes: Annotated[
        ListOf[Text] | None,
        Rule(
            "a list of classes whose objects checkpoints may hold, such as [myproj.Vocabulary], "
            "or null"
        ),
    ] = None
    trial: Switch | None = None  # what follows from false is in `loss_span`
    checkpoint_every: Saving | None = None
    wait_for_gpu: Switch = False
    keep_checkpoint: Annotated[
        bool | Literal["all"] | ListOf[Positive],
        Rule("true, false, all, or the epochs after which to keep one, such as [0.5,2]"),
    ] = False
    trunk: Annotated[ListOf[Count] | None, Rule("left to lengths=[...], which sets it")] = None
    keep_going: Switch = False
    retry: Literal["failed"] | None = None
    rerun: Literal["all"] | None = None
    budget: Budget | None = None
    price: Price | None = None
    hardware: Hardware | None = None
    order: Literal["grid", "information"] | None = None  # None in earlier rows
    code: Literal["keep", "rerun"] | None = None
    metric: Text
    metric_mode: Literal["max", "min"] | None = None
    n_trials: Count
    question: Text | None = None


#: Of these the keys that a grid may have several values of: they say on what layout a run trains.
LAYOUT_KEYS = {
    "devices", "num_nodes", "strategy", "fsdp_blocks", "fsdp_gradients", "compile",
    "checkpoint_activations", "accelerator", "threads", "micro_batch", "micro_batch_limit",
    "memory_limit_gib", "reproducible",
}  # fmt: skip


class RunConfig(Incidental, Scientific):
    """The config of a run; conf/config.yaml says what each key means."""

    @property
    def is_sharded(self) -> bool:
        """Whether ranks hold shards of the model."""
        return self.strategy == "fsdp" and self.world_size > 1

    @property
    def epoch_size(self) -> int:
        """What an epoch has of what batches count: examples, or tokens."""
        return (self.batch_unit and self.epoch_tokens) or self.data.num_train_examples

    @property
    def tokens_per_example(self) -> int | None:
        """Length of a text's sequences [tokens]; 1 if batches are in tokens; else None."""
        return 1 if self.batch_unit else self.data.tokens_per_example

    @property
    def lengths(self) -> dict[str, int]:
        """How long it trains, by the key that says so; exactly one in a valid config."""
        given = {key: getattr(self, key) for key in LENGTHS}
        return {key: number for key, number in given.items() if number is not None}

    @property
    def has_own_module(self) -> bool:
        """Whether the module is the user's own rather than our classifier."""
        return not is_ours(self.module.target)

    @property
    def has_own_code(self) -> bool:
        """Whether the module is the user's own, or the model in our classifier."""
        return self.has_own_module or bool(self.model and not is_ours(self.model.target))

    @property
    def model_name(self) -> str:
        """What trains, by its name in tables."""
        return (self.module if self.has_own_module else self.model or self.module).name

    @property
    def has_own_classes(self) -> bool:
        """Whether its module, data, model or a callback is of the user's choice."""
        groups = filter(None, (self.module, self.data, self.model))
        return bool(self.trainer.callbacks) or not all(is_ours(group.target) for group in groups)

    @property
    def keeps_own_optimizer(self) -> bool:
        """Whether the module's own optimizers are kept, and our rates are factors on theirs."""
        return self.optimizer.target == OWN_OPTIMIZER

    @cached_property
    def growing(self) -> GrowingBatch | None:
        """The schedule by which the batch grows, in `growth_unit`; None if it does not.

        ValueError if its rate, or a critical batch, is not known.
        """
        schedule, ((unit, length),) = self.schedule, self.lengths.items()
        if isinstance(schedule, Seesaw):
            kind = self.optimizer.is_normalised
            return schedule.to_growing_batch(self.batch, length, unit, is_normalised=kind)
        if isinstance(schedule, BatchByRate):
            warmup, is_in_steps = self._warmup_in(unit), unit == "steps"
            return schedule.to_growing_batch(self.batch, length, warmup, is_in_steps=is_in_steps)
        if isinstance(schedule, BatchWarmup):
            is_in_epochs = self.warmup_unit is None
            if is_in_epochs and self.epochs is None:
                msg = (
                    f"schedule.positions must be in other units than epochs with {unit}; got "
                    f"{unit}={length}. Write warmup_unit=steps, examples, tokens or percent."
                )
                raise ValueError(msg)
            schedule = schedule.to_growing_batch(self.batch, self.epochs if is_in_epochs else None)
        if not isinstance(schedule, GrowingBatch):
            return None
        at = tuple(self.to_length(milestone) for milestone in schedule.milestones)
        return schedule.model_copy(update={"milestones": at})

    @property
    def growth_unit(self) -> str:
        """The unit of the milestones of `growing`: epochs, steps or examples."""
        is_part = isinstance(self.schedule, Seesaw | BatchByRate)
        return next(iter(self.lengths)) if is_part else self.milestone_unit

    def _warmup_in(self, unit: str) -> float:
        """Length of the warmup [epochs, steps of the first batch, or examples]."""
        ratio = self.batch / self.base_batch
        own = self.to_length(warmup_length(self.lr_rule, warmup=self.warmup, batch_ratio=ratio))
        size = {"epochs": self.data.num_train_examples, "steps": self.batch, "examples": 1}
        return own if unit == self.milestone_unit else own * size[self.milestone_unit] / size[unit]

    @property
    def milestone_unit(self) -> str:
        """What `to_length` counts: epochs, steps or examples."""
        is_part = self.warmup_unit == "percent"
        return next(iter(self.lengths)) if is_part else self.warmup_unit or "epochs"

    def to_length(self, number: float) -> float:
        """A number of what `warmup_unit` says; a percentage of the length in the length's unit."""
        (length,) = self.lengths.values()
        is_part = self.warmup_unit == "percent"
        return part_of(number, length, of=100) if is_part else number

    @property
    def num_slices(self) -> int:
        """Slices of the batch with a delay of their own; 1 if there are none [count]."""
        delays = self.gradient_delay
        return len(delays) if isinstance(delays, tuple) else 1

    @property
    def world_size(self) -> int:
        """Data-parallel ranks [count]."""
        return self.devices * self.num_nodes

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The plain mapping that this was read from, for files and for the identity."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def with_changes(self, **changes: Any) -> "RunConfig":
        """The same config with some keys changed; ValueError as in `run_config`."""
        return run_config({**self.resolved, **changes})


def run_config(resolved: Mapping[str, Any]) -> RunConfig:
    """Read a resolved config.

    Args:
        resolved: plain values by the keys that users type, of which those in tokens are read as
            examples; `Facts` beside them are ignored.

    Raises:
        ValueError: with a line for each value that is wrong, unknown or missing.
    """
    resolved = {key: value for key, value in resolved.items() if key not in Facts.model_fields}
    config = read_model(RunConfig, to_examples(resolved))
    if wrong := list(find_unstorable(resolved)):
        raise ValueError("\n".join(wrong))
    return config
