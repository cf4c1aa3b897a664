"""What follows from the groups of a config, worked out once for all configs that share them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

_Of = TypeVar("_Of")


class Groups:
    """The groups of a config, which the points of a grid share where no axis changes them.

    Args:
        plain: each group by its key, as plain values.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._worked_out: dict[Callable[..., Any], Any] = {}

    def once(self, work_out: Callable[[Mapping[str, Any]], _Of]) -> _Of:
        """What follows from the groups, worked out for the first config that asks."""
        if work_out not in self._worked_out:
            self._worked_out[work_out] = work_out(self._plain)
        return cast(_Of, self._worked_out[work_out])
