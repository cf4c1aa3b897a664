"""One fully specified run: all that a worker needs and a row records, checked and derived once."""

import json
import math
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from sweeper.spec import identity
from sweeper.spec.batch import (
    BatchPlan,
    BatchSplit,
    choose_micro_batch,
    split_global_batch,
    steps_per_epoch,
    usable_micro_batches,
    whole_steps,
)
from sweeper.spec.config import LENGTHS, Facts, RunConfig, run_config
from sweeper.spec.evaluations import Marks
from sweeper.spec.lr_rules import Mappings, OwnRule, Scaling, peak_lr
from sweeper.spec.method_checks import (
    check_branch,
    check_cooldown,
    check_growth_starts,
    check_largest_batch,
    check_length,
    check_methods,
    check_tokens,
)
from sweeper.spec.scaled_settings import map_settings, scaled_settings
from sweeper.spec.schedule import LRSchedule, warmup_climb, warmup_length
from sweeper.spec.schedules import (
    WSD,
    BatchByRate,
    GrowingBatch,
    OwnSchedule,
    PeriodicDecay,
    Training,
    build_decay,
)
from sweeper.spec.sentences import read_model
from sweeper.spec.spans import gradient_span, needs_noise
from sweeper.spec.values import LARGEST

#: A run whose epochs take longer than this is saved within them, unless `checkpoint_every` is set.
_LONGEST_UNSAVED_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run: its config and what is derived from it.

    Attributes:
        config: with the keys that users type.
        batch_plan: micro-batch, accumulation, ranks and steps of each epoch, as far as known.
        schedule: the learning rate at every step; with AdaScale, that of the base batch.
        facts: what the program has found out about it.
        mappings: what its rules make of the optimizer's settings at its first batch.
        settings: of the optimizer, and `ema_decay`, at that batch, as far as known before the run.
        known_id: the id that it has a result with, if that is another (equivalent_runs.py).
    """

    config: RunConfig
    batch_plan: BatchPlan
    schedule: LRSchedule
    facts: Facts = field(default_factory=Facts)
    mappings: Mappings = field(default_factory=dict[str, Any])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    known_id: str | None = None

    @cached_property
    def run_id(self) -> str:
        """Hash of the scientific configuration."""
        return self.known_id or identity.run_id(self.identified)

    @cached_property
    def kind(self) -> str:
        """The config without the seed, and the layout: all that its time and memory depend on."""
        start = self.facts.start.steps if self.facts.start else 0
        return json.dumps([{**self.config.resolved, "seed": None}, self.split.micro_batch, start])

    @property
    def lr_equivalence_id(self) -> str | None:
        """Hash of all that training depends on; runs that share it are identical, step by step.

        None if its rates or batches depend on what training measures.
        """
        if needs_noise(self.config):
            return None
        decay = self.config.schedule
        reads_warmup = isinstance(decay, OwnSchedule) or getattr(decay, "clock", "") == "warmup"
        rates = self.schedule.climb_key(with_length=reads_warmup)
        settings = self.settings
        if self.config.keeps_own_optimizer and self.mappings:  # not known to be equal
            settings = {"run": self.run_id}
        given = [*rates, self.config.base_lr is None, settings]
        return identity.lr_equivalence_id(self.identified, given)

    @cached_property
    def trunk_id(self) -> str | None:
        """Hash of all that its steps before the cooldown depend on; None if it shares none."""
        if self.config.trunk is None:
            return None
        rates = self.schedule.climb_key(with_length=False)
        return identity.run_id({**self.identified, **dict.fromkeys(LENGTHS), "schedule": rates})

    @cached_property
    def trunk_steps(self) -> Fraction:
        """Its steps before the cooldown, which may begin within one [steps]."""
        assert isinstance(self.config.schedule, WSD), "checked before"
        epochs, each = self.config.epochs, self.steps_per_epoch
        at_own_batch = self.total_steps if epochs is None else epochs * each
        return self.total_steps - at_own_batch * Fraction(str(self.config.schedule.cooldown))

    @property
    def share_to_train(self) -> float:
        """The part of its steps that no other run has trained for it, or is to train."""
        start = self.facts.start
        return 1 - start.steps / self.total_steps if start else 1.0

    @cached_property
    def shorter(self) -> Mapping[int, str]:
        """Shorter runs of its trunk in the same command: steps before their cooldowns, and ids."""
        ((key, own),) = self.config.lengths.items()
        lengths = [length for length in self.config.trunk or () if length < own]
        specs = [run_spec(self.config.with_changes(**{key: n}), self.facts) for n in lengths]
        return {int(spec.trunk_steps): spec.run_id for spec in specs}

    @cached_property
    def words(self) -> identity.Words:
        """The scientific configuration by dotted key, as text."""
        return identity.words(self.identified)

    def with_facts(self, **facts: Any) -> "RunSpec":
        """The same run with more of its `Facts` known, which its row will record."""
        return replace(self, facts=self.facts.model_copy(update=facts))

    @property
    def identified(self) -> dict[str, Any]:
        """The config from which its identity is computed."""
        return identity.with_spans(
            self.config.resolved, self.split.micro_batch, self.split.world_size
        )

    @property
    def split(self) -> BatchSplit:
        """The layout of the first epoch's optimizer steps."""
        return self.batch_plan.split

    @property
    def divided(self) -> int:
        """What a micro-batch divides: a rank's share, and a slice of the batch [examples]."""
        return math.gcd(self.split.rank_batch, self.config.batch // self.config.num_slices)

    @property
    def bn_span(self) -> int:
        """Examples normalised together by BatchNorm [examples]."""
        return self.batch_plan.bn_span

    @property
    def has_spans(self) -> bool:
        """Whether BatchNorm layers are replaced; with `micro`, those of a user's module are not."""
        config = self.config
        is_left = config.has_own_module and config.bn_span == "micro"
        return config.bn_span is not None and not is_left

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch, at the run's first batch [steps]."""
        return _steps_per_epoch(self.batch_plan)

    @property
    def dropped_examples(self) -> int:
        """Examples that the first epoch leaves out, because they do not fill a batch [examples]."""
        return self.config.epoch_size % self.config.batch

    @property
    def epochs(self) -> int:
        """Epochs that the training begins; the last may be cut short [epochs]."""
        return math.ceil(self.length)

    @property
    def length(self) -> float:
        """Length of the training [epochs]."""
        return _length_in_epochs(self.config, self.batch_plan)

    @property
    def total_steps(self) -> int:
        """Optimizer steps in `epochs` epochs, with the batch growths known so far [steps]."""
        return self.batch_plan.steps_before(self.epochs)

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of a text in a step and in the whole training; 0 for other data [tokens]."""
        each = self.config.tokens_per_example or 0
        return each * self.config.batch, each * self.batch_plan.examples_before(self.epochs)

    def steps_at(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch [steps]."""
        return self.batch_plan.steps_at(epoch)

    @cached_property
    def evaluations(self) -> Marks:
        """Where it is evaluated."""
        every = self.config.evaluate_every
        return Marks(every=every, plan=self.batch_plan, epochs=self.most_epochs)

    @cached_property
    def checkpoints(self) -> Marks:
        """Where it is saved, whatever the time."""
        every = self.config.checkpoint_every
        at_end = LARGEST if isinstance(every, str) else every
        return Marks(every=at_end, plan=self.batch_plan, epochs=self.most_epochs)

    @property
    def checkpoint_every_s(self) -> float:
        """The longest that it trains without being saved [seconds]."""
        every = self.config.checkpoint_every
        if isinstance(every, str):
            number = every.rstrip(string.ascii_letters)
            return int(number) * {"s": 1, "min": 60, "h": 3600}[every.removeprefix(number)]
        return _LONGEST_UNSAVED_S if every is None else math.inf

    @property
    def most_epochs(self) -> int:
        """The longest that training can take; with AdaScale, that is at a gain of 1 [epochs]."""
        if self.config.lr_rule.name != "adascale":
            return self.epochs
        return math.ceil(self.schedule.steps_per_epoch * self.epochs / self.steps_per_epoch)

    @property
    def point(self) -> str:
        """A short label, for tables and job names: batch, warmup, rule, seed, what else it has."""
        c = self.config
        words = f"batch={c.batch} warmup={c.warmup:g} lr_rule={c.lr_rule.name} seed={c.seed}"
        words += "".join(f" {key}={n}" for key, n in c.lengths.items() if c.trunk)
        return words + (f" devices={c.devices}" if self.split.world_size > 1 else "")


def run_spec(config: Mapping[str, Any] | RunConfig, facts: Facts | None = None) -> RunSpec:
    """Check a config and derive the run from it.

    Args:
        config: of the run; if a mapping, resolved, with the keys that users type and any facts.
        facts: what is known of it; by default those in the mapping.

    Raises:
        ValueError: if a value is wrong or the values do not fit together.
    """
    if isinstance(config, RunConfig):
        return _run_spec(config, facts or Facts())
    return _run_spec(run_config(config), facts or _read_facts(config))


def read_run_spec(config: Mapping[str, Any], noted_lr: float = math.nan) -> RunSpec:
    """The run of a config in a results folder, whoever wrote it: calls nothing that it names.

    A user's own schedule is therefore unknown: it is nan everywhere.

    Args:
        config: as for `run_spec`.
        noted_lr: the peak rate, in case it comes from a user's own function [dimensionless].

    Raises:
        ValueError: if a value is wrong or the values do not fit together.
    """
    known = {key: value for key, value in config.items() if key not in _FORMER_KEYS}
    for key in ("price", "budget"):  # earlier rows had currencies
        if isinstance(known.get(key), str):
            known[key] = None
    return _run_spec(run_config(known), _read_facts(config), noted_lr)


#: Keys of earlier rows that changed no result.
_FORMER_KEYS = ("energy_price", "pue")


def _read_facts(config: Mapping[str, Any]) -> Facts:
    return read_model(Facts, {key: config[key] for key in Facts.model_fields if key in config})


def _run_spec(config: RunConfig, facts: Facts, noted_lr: float | None = None) -> RunSpec:
    check_length(config)
    check_methods(config)
    check_branch(config, is_counted=facts.data_order == "counted")
    plan = _batch_plan(config)
    if (branch := config.branch) and _length_in_epochs(config, plan) <= _branch_position(plan):
        ((key, number),) = config.lengths.items()
        msg = (
            f"{key} must be more than those of the branch's parent, from whose start they count; "
            f"got {key}={number}, branch={branch.run}@{branch.epochs}. Train longer."
        )
        raise ValueError(msg)
    schedule = _lr_schedule(config, plan, noted_lr)
    is_unknown = noted_lr is not None and isinstance(config.lr_rule, OwnRule)
    at = _scaling(config, plan)
    mappings = {} if is_unknown else map_settings(config, at, schedule.peak_lr)
    spec = RunSpec(
        config=config,
        batch_plan=plan,
        schedule=schedule,
        facts=facts,
        mappings=mappings,
        settings=scaled_settings(config, facts, mappings, at.batch_ratio),
    )
    check_growth_starts(config, plan, schedule)
    if config.trunk:
        check_cooldown(config, spec.trunk_steps)
    return spec


def with_growths(
    spec: RunSpec, grown: tuple[int, ...], sizes: tuple[tuple[int, float], ...] = ()
) -> RunSpec:
    """The same run with its batch multiplied at the start of each of these 0-based epochs."""
    plan = replace(spec.batch_plan, grown=tuple((epoch, 0) for epoch in grown), sizes=sizes)
    schedule = _lr_schedule(spec.config, plan, spec.schedule.peak_lr)  # that of the first batch
    return replace(spec, batch_plan=plan, schedule=schedule)


def with_micro_batch(spec: RunSpec, micro_batch: int) -> RunSpec:
    """The same run with another micro-batch; its config keeps what the user wrote, such as `auto`.

    ValueError if micro-batches of this size do not split the batch exactly.
    """
    changed = run_spec(spec.config.with_changes(micro_batch=micro_batch), spec.facts)
    return replace(changed, config=spec.config)


def _scaling(config: RunConfig, plan: BatchPlan) -> Scaling:
    """What the run's rule may depend on."""
    steps = _length_in_epochs(config, plan) * _steps_per_epoch(plan)
    return Scaling(
        base_lr=float(config.base_lr or 1),  # else it is a factor on the module's own rates
        base_batch=config.base_batch,
        global_batch=config.batch,
        trained_examples=steps * config.batch,
    )


def _lr_schedule(config: RunConfig, plan: BatchPlan, noted_lr: float | None) -> LRSchedule:
    """The schedule; if `noted_lr` is given, none of the user's functions is called."""
    at, batch = _scaling(config, plan), config.batch
    if noted_lr is not None and isinstance(config.lr_rule, OwnRule):
        peak = noted_lr
    else:
        peak = peak_lr(config.lr_rule, at)
    warmup = warmup_length(config.lr_rule, warmup=config.warmup, batch_ratio=at.batch_ratio)
    unit, trained = config.warmup_unit or "epochs", _length_in_epochs(config, plan)
    if not 0 <= _in_epochs(warmup, config, plan) < trained - _branch_position(plan):
        scaled = (
            f", which lr_rule.warmup_exponent={config.lr_rule.warmup_exponent} scales to "
            f"{warmup:g} {unit} at batch={batch},"
        )
        ((key, number),) = config.lengths.items()
        in_unit = f" {unit}" * (key != unit)
        msg = (
            f"warmup must be shorter than the training; got warmup={config.warmup:g}{in_unit}"
            f"{scaled if warmup != config.warmup else ''} of {key}={number}. Train longer "
            f"or warm up for fewer {unit}."
        )
        raise ValueError(msg)
    start_lr, shape = warmup_climb(
        config.warmup_start, base_lr=at.base_lr, peak_lr=peak, workers=config.warmup_workers
    )
    steps = _steps_per_epoch(plan)
    if config.lr_rule.name == "adascale":
        steps = steps_per_epoch(plan.num_train_examples, config.base_batch)
    training = Training(
        epochs=trained,
        warmup_epochs=_in_epochs(warmup, config, plan),
        steps_per_epoch=steps,
        peak_lr=peak,
        grown=tuple(plan.position(plan.steps_before(epoch) + step) for epoch, step in plan.grown),
        rates=tuple(rate for _, rate in plan.sizes),
    )
    is_unknown = noted_lr is not None and isinstance(config.schedule, OwnSchedule)
    schedule, decay_steps = config.growing or config.schedule, 0.0
    warmup_steps = _in_steps(warmup, config, steps)
    if isinstance(config.schedule, BatchByRate):
        decay_steps = (plan.length or plan.steps_before(math.ceil(trained))) - warmup_steps
        schedule = config.schedule
        training = replace(training, epochs=1, warmup_epochs=0, steps_per_epoch=decay_steps)
    elif isinstance(schedule, PeriodicDecay):
        at = tuple(_in_epochs(milestone, config, plan) for milestone in schedule.milestones)
        schedule = schedule.model_copy(update={"milestones": at})
    elif isinstance(schedule, GrowingBatch) and schedule.growth == "milestones":
        later = schedule.milestones[len(plan.grown) :]  # which lower the rate
        at = (*training.grown, *(_place_in_epochs(at, config, plan) for at in later))
        schedule = schedule.model_copy(update={"milestones": at})
    decay = _unknown_factor if is_unknown else build_decay(schedule, training, config.schedule.name)
    return LRSchedule(
        start_lr=start_lr,
        shape=shape,
        peak_lr=peak,
        warmup_epochs=_in_epochs(warmup, config, plan),
        warmup_steps=warmup_steps,
        steps_per_epoch=steps,
        decay=decay,
        decay_steps=decay_steps,
        batch_plan=plan if plan.grown or plan.parent_batch else None,
    )


def _length_in_epochs(config: RunConfig, plan: BatchPlan) -> float:
    """Length of the training [epochs]."""
    if plan.length is None:
        assert config.epochs is not None, "checked before"
        return config.epochs
    return plan.position(plan.length)


def _steps_per_epoch(plan: BatchPlan) -> int:
    """Whole steps of the run's first batch in an epoch [steps]."""
    return steps_per_epoch(plan.num_train_examples, plan.split.global_batch)


def _in_steps(number: float, config: RunConfig, steps_per_epoch: int) -> float:
    """A number of epochs, or of what `warmup_unit` says, in steps of the first batch."""
    number, unit = config.to_length(number), config.milestone_unit
    if unit == "epochs":
        return number * steps_per_epoch
    return number / (config.batch if unit == "examples" else 1)


def _in_epochs(number: float, config: RunConfig, plan: BatchPlan) -> float:
    """A number of epochs, or of what `warmup_unit` says, in epochs."""
    if config.milestone_unit == "epochs":
        return config.to_length(number)
    steps = _steps_per_epoch(plan)
    return _in_steps(number, config, steps) / steps


def _place_in_epochs(milestone: float, config: RunConfig, plan: BatchPlan) -> float:
    """The first step at or after a milestone of a growing batch [epochs]."""
    epoch, step = plan.find_step(Fraction(str(milestone)), config.growth_unit)
    return plan.position(plan.steps_before(epoch) + step)


def _unknown_factor(epoch: float) -> float:
    """The decay of a user's schedule that must not be called."""
    del epoch
    return math.nan


def _split_batch(config: RunConfig, bn_span: int) -> BatchSplit:
    micro_batch = config.micro_batch
    if micro_batch == "auto":
        micro_batch = gradient_span(config) or choose_micro_batch(
            config.batch,
            world_size=config.world_size,
            limit=config.micro_batch_limit,
            bn_span=bn_span,
        )
        if config.num_slices > 1:
            both = math.gcd(config.batch // config.world_size, config.batch // config.num_slices)
            limit = min(micro_batch, config.micro_batch_limit)
            micro_batch = usable_micro_batches(both, limit=limit, bn_span=bn_span)[-1]
    return split_global_batch(
        config.batch, world_size=config.world_size, micro_batch=micro_batch, bn_span=bn_span
    )


def _branch_position(plan: BatchPlan) -> float:
    """Where a branch begins; 0 for other runs [epochs]."""
    epoch, step = plan.first
    return plan.position(plan.steps_before(epoch) + step)


def _with_parent(plan: BatchPlan, config: RunConfig) -> BatchPlan:
    """A plan that begins where the config's branch does, if it is one.

    ValueError if that is within an epoch, and not before a whole number of its own batches.
    """
    if not (branch := config.branch):
        return plan
    its_own = BatchSplit(micro_batch=branch.batch, accumulation_steps=1, world_size=1)
    epoch, step = replace(plan, split=its_own).find_step(Fraction(str(branch.epochs)), "epochs")
    plan = replace(plan, first=(epoch, step), parent_batch=branch.batch)
    done = step * branch.batch
    if done % config.batch or done + config.batch > config.epoch_size:
        at = f"branch={branch.run}@{branch.epochs}, batch={config.batch}"
        msg = (
            "within an epoch a branch must begin after a multiple of its batch, and before the "
            f"epoch's last; got {at}, after {done} of {config.epoch_size} examples. Use another "
            "batch or position."
        )
        raise ValueError(msg)
    return plan


def _batch_plan(config: RunConfig) -> BatchPlan:
    key = "epoch_tokens" if config.batch_unit and config.epoch_tokens else "data.num_train_examples"
    steps_per_epoch(config.epoch_size, config.batch, key)  # refuses too large a batch
    span = config.bn_span if isinstance(config.bn_span, int) else 1  # 1: nothing is normalised
    try:
        split = _split_batch(config, span)
    except ValueError as error:
        if (each := config.data.tokens_per_example) is None:
            raise
        msg = f"{error} An example is {each} tokens."
        raise ValueError(msg) from error
    check_tokens(config, split)
    growing = config.growing
    plan = BatchPlan(
        split=split,
        bn_span=split.micro_batch if config.bn_span == "micro" else span,
        num_train_examples=config.epoch_size,
        factor=growing.factor if growing else 1,
    )
    plan = _with_parent(plan, config)
    if max_batch := getattr(growing or config.schedule, "max_batch", None):
        check_largest_batch(config, max_batch)
    if growing and growing.growth == "milestones":
        for milestone, power in growing.changes(config.batch):
            plan = plan.with_growth(Fraction(str(milestone)), config.growth_unit, power)
    length = config.steps
    if config.examples:
        grows = plan.grown or plan.parent_batch
        length = (
            plan.whole_steps(config.examples)
            if grows
            else whole_steps(config.examples, config.batch)
        )
    return replace(plan, length=length)
