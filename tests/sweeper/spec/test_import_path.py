"""Calls of what a config names: what is refused, and what is an error of the user's own code."""

import pytest

from sweeper.spec.config import Component
from sweeper.spec.import_path import call


def test_a_component_is_called_with_its_settings_and_more():
    half = Component(_target_="fractions.Fraction", denominator=4)

    assert half.build(numerator=2) == 0.5
    assert call("math.hypot", 3, 4, settings={}) == 5


@pytest.mark.parametrize(
    ("dotted", "settings", "message"),
    [
        ("fractions.Nothing", {},
         "_target_ must name something that can be imported; got _target_='fractions.Nothing': "
         "module 'fractions' has no attribute 'Nothing'. Install its package or put its folder on "
         "PYTHONPATH."),
        ("math.pi", {},
         "_target_ must name a class or a function; got _target_='math.pi'. It cannot be called."),
        ("fractions.Fraction", {"upper": 1, "lower": 2},
         "_target_=fractions.Fraction must accept the settings in its config; got lower, upper: "
         "got an unexpected keyword argument 'upper'."),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused(dotted, settings, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        call(dotted, settings=settings)

    assert str(refused.value) == message


def test_a_type_error_inside_the_code_is_its_own():
    with pytest.raises(TypeError, match="both arguments should be Rational instances"):
        call("fractions.Fraction", 1, settings={"denominator": "2"})
