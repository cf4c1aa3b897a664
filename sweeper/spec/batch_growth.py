"""When the batch of `schedule=growing_batch` grows, and what cannot grow."""

from sweeper.spec.config import RunConfig
from sweeper.spec.schedules import GrowingBatch, Schedule


def factor_of(schedule: Schedule) -> int:
    """The factor by which the batch grows; 1 for schedules whose batch does not grow."""
    return schedule.factor if isinstance(schedule, GrowingBatch) else 1


def growths_allowed(schedule: Schedule, global_batch: int) -> int:
    """How often the batch may be multiplied before it would exceed `max_batch` [count]."""
    allowed = 0
    if isinstance(schedule, GrowingBatch):
        while global_batch * schedule.factor ** (allowed + 1) <= schedule.max_batch:
            allowed += 1
    return allowed


def planned_growths(schedule: Schedule, global_batch: int) -> tuple[int, ...]:
    """The epochs at which the batch is planned to grow; none where growth is measured."""
    if not isinstance(schedule, GrowingBatch) or schedule.growth == "measured":
        return ()
    return schedule.milestones[: growths_allowed(schedule, global_batch)]


def check_growth(config: RunConfig, warmup_epochs: float) -> None:
    """Refuse a growing batch that cannot be trained.

    Args:
        config: of the run.
        warmup_epochs: length of the warmup at this batch [epochs].

    Raises:
        ValueError: with a rule, the value and a remedy.
    """
    schedule = config.schedule
    if not isinstance(schedule, GrowingBatch):
        return
    early = [milestone for milestone in schedule.milestones if milestone < warmup_epochs]
    if early:
        msg = (
            "schedule.milestones must come after the warmup, during which the batch is constant; "
            f"got a milestone of {early[0]}, {warmup_epochs:g} warmup epochs. Move it."
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
