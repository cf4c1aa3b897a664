"""Refuses a grid over presets that sweep keys of their own."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any


def check_preset_grids(
    groups: Sequence[Sequence[str]],
    given: Collection[str],
    grid_of: Callable[[Sequence[str]], Mapping[str, Any]],
) -> None:
    """Refuse a grid over presets that have grids of their own, since those would be ignored.

    Args:
        groups: for each group, its choices as typed.
        given: all keys that the command sets.
        grid_of: gives, by key, what the presets among some choices sweep.

    Raises:
        ValueError: naming the preset.
    """
    if all(len(choices) == 1 for choices in groups):
        return
    known = grid_of([choices[0] for choices in groups if len(choices) == 1])
    for chosen in itertools.product(*groups):
        swept = [key for key in grid_of(chosen) if key not in known]
        if left_out := [key for key in swept if key.lstrip("+") not in given]:
            msg = (
                "a grid must not combine presets that have grids of their own; got "
                f"{' '.join(chosen)}, whose grid over {', '.join(left_out)} would be left out. "
                "Give each a command of its own; runs that they share are trained once."
            )
            raise ValueError(msg)
