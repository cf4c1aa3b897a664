"""What a device-hour and a kWh cost, as the user says. Pure: no clock, no disk, no cluster."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from sweeper.spec.values import EnergyPrice, Money, Rule, Settings


class Tariff(Settings):
    """What things cost; what is not given is not guessed.

    Attributes:
        price: of a device-hour.
        energy_price: of a kWh.
        pue: what the whole site takes for each kWh of its devices; 1 if None [dimensionless].
    """

    price: Money | None = None
    energy_price: EnergyPrice | None = None
    pue: Annotated[int | float, Field(ge=1), Rule("a number, 1 or more")] | None = None

    @field_validator("energy_price")
    @classmethod
    def _is_in_one_currency(cls, energy_price: str | None, info: ValidationInfo) -> str | None:
        price = info.data.get("price")
        if price and energy_price and _currency(price) != _currency(energy_price):
            raise ValueError
        return energy_price

    def cost(self, device_hours: float, energy_kwh: float | None) -> str | None:
        """A currency and an amount, as one would type it; None if no price is given for any of it.

        ``device_hours * price + energy_kwh * pue * energy_price``

        Args:
            device_hours: of all devices [hours].
            energy_kwh: that they take; None if it is not known, and then left out [kWh].
        """
        priced = [(self.price, device_hours)]
        if energy_kwh is not None:
            priced.append((self.energy_price, energy_kwh * (self.pue or 1)))
        parts = [(price.split(":"), quantity) for price, quantity in priced if price]
        total = sum(float(amount) * quantity for (_, amount), quantity in parts)
        return f"{parts[0][0][0]}:{total:.2f}" if parts else None


def _currency(price: str) -> str:
    return price.partition(":")[0]


def total_kwh(parts: Iterable[float | None]) -> float | None:
    """The sum of all parts; None if one is not known, or there is none [kWh]."""
    listed = list(parts)
    known = [part for part in listed if part is not None]
    return sum(known) if known and len(known) == len(listed) else None


def taken(device_hours: float, energy_kwh: float | None, cost: str | None) -> str:
    """What runs take, as far as it is known."""
    energy = None if energy_kwh is None else f"{energy_kwh:.3g} kWh"
    return ", ".join(filter(None, [f"{device_hours:.3g} device-hours", energy, cost]))
