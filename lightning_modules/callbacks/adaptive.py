"""What a run decides from the noise of its gradient while it trains: its rate and its batch."""

from typing import Any

from sweeper.spec.adascale import AdaScale, smoothing
from sweeper.spec.batch import BatchSplit
from sweeper.spec.batch_growth import growths_allowed
from sweeper.spec.gradient_noise import Noise, NoiseAverage
from sweeper.spec.run_spec import RunSpec, with_growths


class Adaptive:
    """The rate of each step and the batch of each epoch, as far as they follow the gradient.

    All ranks measure the same numbers, so they decide alike. Without AdaScale and measured growth
    nothing here changes: rates and batches are those that were planned.

    Args:
        spec: the run as planned.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._adascale = _adascale(spec) if spec.config.lr_rule.name == "adascale" else None
        schedule = spec.config.schedule
        self._grows = getattr(schedule, "growth", None) == "measured"
        self._growths_allowed = growths_allowed(schedule, spec.split.global_batch)

    def layout(self, epoch: int) -> tuple[BatchSplit, int]:
        """The layout of a 0-based epoch's optimizer steps, and their number."""
        return self._spec.batch_plan.split_at(epoch), self._spec.steps_at(epoch)

    def lr(self, step: int) -> float:
        """Learning rate of a 0-based optimizer step whose gradient is not known yet."""
        return self._spec.schedule.lr(step) if self._adascale is None else self._adascale.lr

    def lr_by(self, noise: Noise) -> float | None:
        """Learning rate of the step whose gradient is this noisy; None if it does not follow it."""
        return None if self._adascale is None else self._adascale.step(noise)

    def end_epoch(self, epochs: int, noise_scale: float | None) -> None:
        """Let the batch grow if the noise of the epoch was above it.

        Args:
            epochs: completed by now [epochs].
            noise_scale: of the epoch that ends [examples].
        """
        grown = self._spec.batch_plan.grown
        batch = self._spec.batch_plan.split_at(epochs).global_batch
        is_free = len(grown) < self._growths_allowed
        is_warm = epochs >= self._spec.schedule.warmup_epochs
        if self._grows and is_free and is_warm and noise_scale is not None and noise_scale > batch:
            self._spec = with_growths(self._spec, (*grown, epochs))

    @property
    def is_done(self) -> bool:
        """Whether AdaScale has gone through its schedule; False without it."""
        if self._adascale is None:
            return False
        schedule_steps = self._spec.epochs * self._adascale.schedule.steps_per_epoch
        return self._adascale.progress >= schedule_steps

    def state(self) -> dict[str, Any]:
        """What was decided so far, in plain containers, for the checkpoint."""
        adascale = None if self._adascale is None else self._adascale.state()
        return {"adascale": adascale, "grown": list(self._spec.batch_plan.grown)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        if self._adascale is not None:
            self._adascale.load_state(state["adascale"])
        if self._grows:
            self._spec = with_growths(self._spec, tuple(state["grown"]))


def _adascale(spec: RunSpec) -> AdaScale:
    base_batch, batch = spec.config["base_batch"], spec.split.global_batch
    kept = spec.config["lr_rule"]["smoothing"]
    return AdaScale(
        schedule=spec.schedule,
        base_batch=base_batch,
        global_batch=batch,
        average=NoiseAverage(smoothing=smoothing(batch / base_batch) if kept is None else kept),
    )
