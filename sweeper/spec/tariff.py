"""The user's prices of a device-hour and a kWh. Pure: no clock, no disk, no cluster."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from sweeper.spec.values import EnergyPrice, Money, Rule, Settings


class Tariff(Settings):
    """Prices; one that is not given is not guessed.

    Attributes:
        price: of a device-hour.
        energy_price: of a kWh.
        pue: energy of the whole site per energy of its devices; 1 if None [dimensionless].
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
        """The cost as currency and amount, as users would type it; None if no price applies.

        ``device_hours * price + energy_kwh * pue * energy_price``

        Args:
            device_hours: over all devices [hours].
            energy_kwh: energy that they take; left out of the sum if None, unknown [kWh].
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
    """The sum of all parts; None if any is unknown or there are none [kWh]."""
    listed = list(parts)
    known = [part for part in listed if part is not None]
    return sum(known) if known and len(known) == len(listed) else None


def taken(device_hours: float, energy_kwh: float | None, cost: str | None) -> str:
    """Device-hours, energy and cost as text, as far as they are known."""
    energy = None if energy_kwh is None else f"{energy_kwh:.3g} kWh"
    return ", ".join(filter(None, [f"{device_hours:.3g} device-hours", energy, cost]))
