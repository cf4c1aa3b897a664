"""Sentences on planned runs below the table: rates, metric, changes during a run, guarantees."""

from sweeper.spec.guarantees import missing
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.schedules import GrowingBatch
from sweeper.spec.sentences import several


def compared(spec: RunSpec) -> str:
    """The metric that runs are compared by; empty if it is the default accuracy."""
    name, mode = spec.config.metric, spec.config.metric_mode
    if mode is None:
        return ""
    better = "higher" if mode == "max" else "lower"
    return f"Runs are compared by {name} ({better} is better)."


def rates(spec: RunSpec) -> str:
    """What the peak rates of the table are; empty if they are learning rates."""
    if not spec.config.keeps_own_optimizer:
        return ""
    return (
        "peak lr is a factor on the rates that the optimizers and schedulers of "
        f"{spec.config.module.name} set."
    )


def course(spec: RunSpec) -> str:
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
    first, *later = spec.batch_plan.batches()
    grown = [
        f"{batch:,} from epoch {epoch} on ({several(spec.steps_at(epoch), 'step')} each)"
        for epoch, batch in later
    ]
    return f"batch {first[1]:,}, then {', '.join(grown)}." if grown else ""


def guarantees(spec: RunSpec) -> str:
    """The guarantees found to hold for the user's module; empty for our own module."""
    if not spec.config.has_own_module:
        return ""
    holding = spec.facts.guarantees or []
    not_holding = f"; not confirmed: {', '.join(names)}" if (names := missing(holding)) else ""
    return (
        f"Confirmed for {spec.config.module.name}: {', '.join(holding) or 'nothing'}"
        f"{not_holding}. `sweeper doctor` with the same overrides says why."
    )
