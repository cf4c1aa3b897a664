"""Warmup shapes: how the learning rate climbs from its start to its peak."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: How far along the climb a 0-based step stands, 0 at the start and 1 at the peak, given the
#: step and the length of the warmup [steps].
Shape = Callable[[int, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Where a warmup starts and how it climbs.

    Attributes:
        start_lr: learning rate that the climb starts from [dimensionless].
        shape: the climb.
    """

    start_lr: float
    shape: Shape


def gradual(step: int, steps: float) -> float:
    """Climb by the same amount each step; the first step is at the start: ``step / steps``.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.2.
    """
    return step / steps


def ahead(step: int, steps: float) -> float:
    """Like `gradual`, but the last step of the warmup is at the peak: ``(step + 1) / steps``.

    Source:
        Horovod's examples/pytorch/pytorch_imagenet_resnet50.py, `adjust_learning_rate`.
    """
    return min(1.0, (step + 1) / steps)


def flat(step: int, steps: float) -> float:
    """Stay at the start, then jump to the peak.

    Source:
        Goyal et al. 2017, section 2.2, "constant warmup" (worse than none in their table).
    """
    del step, steps
    return 0.0


def warmup(start: str, *, base_lr: float, peak_lr: float, workers: int | None) -> Warmup:
    """The warmup that a `warmup_start` names.

    * `base`: gradually from the base rate (Goyal et al. 2017);
    * `zero`: gradually from zero, which the first step trains at (MLPerf);
    * `constant`: at the base rate, then a jump (Goyal et al. 2017);
    * `horovod`: from ``peak_lr / workers``. Horovod divides by the ranks it happens to run on;
      here the number is stated with the experiment, so that the layout changes nothing.

    Args:
        start: one of these words.
        base_lr: learning rate tuned at the base batch [dimensionless].
        peak_lr: learning rate at the end of the warmup [dimensionless].
        workers: Horovod's number of workers, given only for `horovod` [count].

    Raises:
        ValueError: if `workers` is missing for `horovod`, or given without it.
    """
    if (start == "horovod") != (workers is not None):
        msg = (
            "warmup_workers must be given with warmup_start=horovod and only with it; got "
            f"warmup_start={start}, warmup_workers={workers}. "
            + ("Write warmup_workers=240." if workers is None else "Remove warmup_workers.")
        )
        raise ValueError(msg)
    if workers is not None:
        return Warmup(start_lr=peak_lr / workers, shape=ahead)
    starts: Mapping[str, Warmup] = {
        "base": Warmup(start_lr=base_lr, shape=gradual),
        "zero": Warmup(start_lr=0.0, shape=gradual),
        "constant": Warmup(start_lr=base_lr, shape=flat),
    }
    return starts[start]
