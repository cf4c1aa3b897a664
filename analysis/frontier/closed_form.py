"""Time and device-hours in closed form: no exchange, no evaluation, devices that are always full.

``steps = fewest_steps + fewest_examples / batch`` on ``devices = batch / micro_batch``, of which
each trains `rate` examples per second.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A hyperbola of steps against batch, and a speed.

    Attributes:
        fewest_steps: limit for large batches [steps].
        fewest_examples: limit for small batches [examples].
        micro_batch: examples per device per step.
        rate: of one device [examples/s].
    """

    fewest_steps: float
    fewest_examples: float
    micro_batch: float
    rate: float

    @property
    def critical_batch(self) -> float:
        """The batch at which device-hours are twice their minimum [examples]."""
        return self.fewest_examples / self.fewest_steps

    def time_s(self, devices: float) -> float:
        """``(fewest_steps * micro_batch + fewest_examples / devices) / rate`` [seconds]."""
        steps_of_one = self.fewest_steps * self.micro_batch
        return (steps_of_one + self.fewest_examples / devices) / self.rate

    def device_hours(self, devices: float) -> float:
        """``devices * time``; doubles exactly at the critical batch."""
        return devices * self.time_s(devices) / 3600

    @property
    def knee(self) -> float:
        """Devices at which 1 % less time costs 1 % more device-hours, at the critical batch."""
        return self.critical_batch / self.micro_batch
