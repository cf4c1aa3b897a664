"""Prices of device-hours and of energy: added where they are given, guessed nowhere."""

import pytest

from sweeper.spec.config import run_config
from sweeper.spec.tariff import Tariff, taken, total_kwh


@pytest.mark.parametrize(
    ("given", "energy_kwh", "cost"),
    [
        ({}, 10.0, None),
        ({"price": "EUR:2"}, 10.0, "EUR:8.00"),
        ({"energy_price": "EUR:0.3"}, 10.0, "EUR:3.00"),
        ({"energy_price": "EUR:0.3"}, None, None),
        ({"price": "EUR:2", "energy_price": "EUR:0.3"}, None, "EUR:8.00"),
        ({"price": "EUR:2", "energy_price": "EUR:0.3"}, 10.0, "EUR:11.00"),
        ({"price": "EUR:2", "energy_price": "EUR:0.3", "pue": 1.5}, 10.0, "EUR:12.50"),
        ({"pue": 1.5}, 10.0, None),
    ],
)
def test_four_device_hours_cost_what_their_prices_say(given, energy_kwh, cost):
    assert Tariff(**given).cost(4.0, energy_kwh) == cost


def test_two_currencies_are_refused(config):
    words = r"energy_price must be an amount above 0 in the currency of price, .*got .*USD:0.3"
    with pytest.raises(ValueError, match=words):
        run_config(config(price="EUR:2", energy_price="USD:0.3"))

    assert run_config(config(energy_price="USD:0.3")).cost(1, 1) == "USD:0.30"


@pytest.mark.parametrize("pue", [0.9, "1.2"])
def test_no_site_takes_less_than_its_devices(config, pue):
    with pytest.raises(ValueError, match="pue must be a number, 1 or more, or null; got pue="):
        run_config(config(pue=pue))


def test_a_sum_without_a_part_is_not_known():
    assert total_kwh([1.0, 0.0, 2.0]) == 3
    assert total_kwh([1.0, None]) is total_kwh([]) is None


def test_only_what_is_known_is_said():
    assert taken(4.0, None, None) == "4 device-hours"
    assert taken(4.0, 1.23, "EUR:8.00") == "4 device-hours, 1.23 kWh, EUR:8.00"
