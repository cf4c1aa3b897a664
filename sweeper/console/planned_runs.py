"""What `sweeper plan` says below its table, and its plot of the learning rates."""

from collections.abc import Sequence
from pathlib import Path

from sweeper.spec.guarantee_names import missing
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.schedules import AdaptiveBatch, GrowingBatch
from sweeper.spec.sentences import several
from sweeper.store.run_columns import setting_columns


def describe_metric(spec: RunSpec) -> str:
    """The metric that runs are compared by; empty if it is the default accuracy."""
    name, mode = spec.config.metric, spec.config.metric_mode
    if mode is None:
        return ""
    better = "higher" if mode == "max" else "lower"
    return f"Runs are compared by {name} ({better} is better)."


def describe_rule(specs: Sequence[RunSpec]) -> str:
    """The rule and the length in force for a class of the user's; empty for our own."""
    config = specs[0].config
    if not config.has_own_code:
        return ""
    each = "token" if config.batch_unit else "example"
    units = {"epochs": "epoch", "steps": "step", "examples": each}
    given = [(getattr(s.config, key), noun) for s in specs for key, noun in units.items()]
    length = ", ".join(dict.fromkeys(several(num, noun) for num, noun in given if num is not None))
    rules = " and ".join(dict.fromkeys(spec.config.lr_rule.name for spec in specs))
    is_kept = config.keeps_own_optimizer
    rates = f"{config.model_name}'s own learning rates" if is_kept else "the rates of base_lr"
    rule = f"so {rates} hold at every batch (lr_rule=linear or sqrt scales them)"
    if rules != "none":
        rule = (
            f"by which {rates} scale from base_batch={config.base_batch} (lr_rule=none keeps them)"
        )
    return f"Rule: {rules}, {rule}. Length: {length}."


def describe_rates(spec: RunSpec) -> str:
    """What the peak rates of the table are; empty if they are learning rates."""
    if not spec.config.keeps_own_optimizer:
        return ""
    return (
        "peak lr is a factor on the rates that the optimizers and schedulers of "
        f"{spec.config.module.name} set; it is 1 at base_batch={spec.config.base_batch}."
    )


def describe_settings(spec: RunSpec) -> str:
    """What the rules make of other settings than the rate; empty without such a rule."""
    if not (spec.mappings or spec.config.ema_rule):
        return ""
    known = {name: v for name, v in setting_columns(spec.settings).items() if v is not None}
    made = ", ".join(f"{name} {value:.6g}" for name, value in known.items())
    later = f"{' and '.join(spec.mappings)} known when it starts" * (not known)
    return f"batch {spec.config.batch:,}: {made or later} (base_batch={spec.config.base_batch})."


def describe_course(spec: RunSpec) -> str:
    """How the batch or the length changes during a run; empty for most runs."""
    config, batch = spec.config, f"batch {spec.split.global_batch:,}"
    if config.lr_rule.name == "adascale":
        return (
            f"{batch}, adascale: from {spec.epochs} to {spec.most_epochs} epochs, at 1 to "
            f"{spec.split.global_batch / config.base_batch:g} times the rate, depending on the "
            "gradient noise; the numbers above are for the shortest."
        )
    schedule = config.schedule
    if isinstance(schedule, GrowingBatch) and schedule.growth == "measured":
        return (
            f"{batch}: times {schedule.factor} after each epoch whose noise scale is above "
            f"the batch, up to {schedule.max_batch:,}; the numbers above assume no growth."
        )
    if isinstance(schedule, AdaptiveBatch):
        return (
            f"{batch}: after each epoch the best for its gradients, with its rate, up to "
            f"{schedule.max_batch:,}; the numbers above assume no change."
        )
    plan, grown = spec.batch_plan, list[str]()
    first = before = plan.split_at(0).global_batch
    for epoch, step in plan.starts[1:]:
        if (start := plan.steps_before(epoch) + step) >= spec.total_steps:
            break
        place = f"epoch {epoch} on ({several(spec.steps_at(epoch), 'step')} each)"
        if step:
            place = f"step {start:,} on"
        now = plan.split_at(epoch, step).global_batch
        grown += [f"{now:,} from {place}"] * (now != before)
        before = now
    if grown:
        return f"batch {first:,}, then {', '.join(grown)}."
    return f"batch {first:,} in every step." if first != config.batch else ""


def describe_validation(spec: RunSpec) -> str:
    """The size of validation batches, if it is ours."""
    if spec.facts.val_batch is None:
        return ""
    return (
        f"Validation takes {spec.facts.val_batch} examples at once, at every batch and on every "
        f"layout, as {spec.config.data.name} says no number of its own."
    )


#: What is said of each kind of run below the table, in this order.
DESCRIPTIONS = (
    describe_rates, describe_settings, describe_course, describe_metric, describe_validation,
)  # fmt: skip


def describe_guarantees(spec: RunSpec) -> str:
    """The guarantees found to hold for the user's module; empty for our own module."""
    if not spec.config.has_own_code:
        return ""
    holding = spec.facts.guarantees or []
    not_holding = f"; not confirmed: {', '.join(names)}" if (names := missing(holding)) else ""
    return (
        f"Confirmed for {spec.config.model_name}: {', '.join(holding) or 'nothing'}"
        f"{not_holding}. `sweeper doctor` with the same overrides says why."
    )


Series = tuple[tuple[float, float], ...]

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_POINTS = 2000  # about as many per line; every step if there are fewer


def schedule_series(specs: Sequence[RunSpec]) -> dict[Series, str]:
    """Every distinct series of (epoch, learning rate), with the names of the runs that have it.

    Runs that differ only in seed or layout share a series; so do arms of a study whose rates were
    meant to differ but do not.
    """
    names: dict[Series, list[str]] = {}
    for spec in specs:
        schedule = spec.schedule  # with AdaScale, that of the base batch, before the gain
        total = schedule.total_steps(spec.length)
        steps = range(0, total, max(1, total // _POINTS))
        series = tuple((schedule.position(step), schedule.lr(step)) for step in steps)
        config = spec.config
        rule, decay = config.lr_rule.name, config.schedule.name
        plan, grows = spec.batch_plan, ""
        if plan.grown:
            grows = f" to {plan.split_at(*plan.grown[-1]).global_batch:,}"
        name = f"batch {config.batch:,}{grows}, warmup {config.warmup:g}, {rule}, {decay}"
        found = names.setdefault(series, [])
        if name not in found:
            found.append(name)
    return {series: "; ".join(found) for series, found in names.items()}


def draw_schedules(specs: Sequence[RunSpec], path: Path) -> None:
    """Draw the learning rate of every planned run by step.

    ValueError if matplotlib cannot write files of this type.
    """
    from cycler import cycler  # matplotlib takes half a second, so only where it draws
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in kinds:
        msg = (
            f"--schedule-plot must end in a type of picture; got {path}. Its types: "
            f"{', '.join(kinds)}."
        )
        raise ValueError(msg)
    axes = figure.add_subplot()
    axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * cycler(color=_COLORS))
    for series, name in schedule_series(specs).items():
        epochs, rates = zip(*series, strict=True)
        axes.plot(epochs, rates, drawstyle="steps-post", label=name)
    axes.set(xlabel="epochs since the start", ylabel="learning rate")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=150)
