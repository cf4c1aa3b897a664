"""The types of values that a config may hold, each with the rule that its error quotes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

#: The largest whole number that a parquet column can hold.
LARGEST = 2**63 - 1
#: The largest number of examples or processes in a step: its divisors are still found quickly.
_LARGEST_STEP = 10**10
#: The longest text, such as a path [characters].
_LONGEST_TEXT = 4096


class Settings(BaseModel):
    """A part of the config. It has no default values; those are only in conf/.

    Optional settings, which users add with a `+`, are None when left out.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be, as error messages say it.

    Attributes:
        text: goes after "must be".
        remedy: what to do about a value that breaks the rule.
        most: the largest whole number allowed.
    """

    text: str
    remedy: str = ""
    most: int = LARGEST


_Finite = Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | float  # a whole number stays an int

Count = Annotated[int, Field(ge=1, le=LARGEST), Rule("a whole number, 1 or more")]
InStep = Annotated[
    int,
    Field(ge=1, le=_LARGEST_STEP),
    Rule("a whole number, 1 or more", most=_LARGEST_STEP),
]
Threads = Annotated[int, Field(ge=1, le=1024), Rule("a whole number from 1 to 1024")]
Index = Annotated[int, Field(ge=0, le=LARGEST), Rule("a whole number, 0 or more")]
Number = Annotated[_Finite, Rule("a number")]
Positive = Annotated[_Finite, Field(gt=0), Rule("a number above 0")]
NotNegative = Annotated[_Finite, Field(ge=0), Rule("a number, 0 or more")]
Epochs = Annotated[_Finite, Field(ge=0), Rule("a number of epochs, 0 or more")]
_Examples = Annotated[int, Field(ge=1, le=LARGEST)] | Annotated[float, Field(gt=0, lt=1)]
Interval = Annotated[
    _Examples,
    Rule(
        "a number of examples, such as 50000, of a text's tokens, such as 50000tokens, or a part "
        "of an epoch below 1, such as 0.1"
    ),
]
Saving = Annotated[
    _Examples | Annotated[str, Field(pattern=r"^[1-9]\d{0,5}(s|min|h)$")],
    Rule(
        "a number of examples, such as 50000, of a text's tokens, such as 50000tokens, a part of "
        "an epoch below 1, such as 0.1, or a time, such as 90s, 15min or 2h"
    ),
]
Fraction = Annotated[_Finite, Field(ge=0, lt=1), Rule("a number from 0 to below 1")]
Switch = Annotated[bool, Rule("true or false")]


def _encodable(text: str) -> str:
    text.encode()  # the shell passes bytes that are not text as lone surrogates
    return text


Text = Annotated[str, Field(max_length=_LONGEST_TEXT), AfterValidator(_encodable), Rule("a string")]


Price = Annotated[
    Annotated[_Finite, Field(gt=0)], Rule("a number above 0, the price of a device-hour")
]
Budget = Annotated[Annotated[_Finite, Field(gt=0)], Rule("a number of device-hours above 0")]


def ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    """The values; ValueError if they are not in order, or repeat."""
    if list(values) != sorted(set(values)):
        raise ValueError
    return values


_Item = TypeVar("_Item")
#: A tuple for which a list is accepted.
ListOf = Annotated[tuple[_Item, ...], Field(strict=False)]
Ascending = Annotated[ListOf[_Item], AfterValidator(ascending)]
Milestones = Annotated[
    Ascending[Positive], Rule("positive and ascending", "Sort them and remove repeats.")
]

#: The key by which users name a function of their own.
OWN = "_target_"
#: The tag of choices that are identified by name; not a key that users could type.
NAMED = "(named)"


def named_or_own(group: Any) -> str:
    """The tag of a group: a choice identified by its name, or a user's own function."""
    is_own = OWN in group if isinstance(group, Mapping) else hasattr(group, "target")
    return OWN if is_own else NAMED


class Own(Settings, extra="allow"):
    """A user's own function and its settings.

    Attributes:
        name: its name in tables.
        target: its dotted path.
    """

    name: Text
    target: Text = Field(alias=OWN)
