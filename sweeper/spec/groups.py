"""The groups of a config, and what is computed from them once for all configs that share them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

_Of = TypeVar("_Of")


class Groups:
    """The groups of a config, which the points of a grid share if no override changes them.

    Args:
        plain: each group by its key, as plain values.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._computed: dict[Callable[..., Any], Any] = {}

    def once(self, compute: Callable[[Mapping[str, Any]], _Of]) -> _Of:
        """A function of the groups, computed for the first config that asks and then cached."""
        if compute not in self._computed:
            self._computed[compute] = compute(self._plain)
        return cast(_Of, self._computed[compute])
