"""What interpolations may refer to: values of other keys are set without composing again."""

import re
from collections.abc import Sequence

#: Stands for the names in a text with nested interpolations, which may refer to anything.
ANYTHING = "${"


def names_in(text: str) -> frozenset[str]:
    """The words inside a text's interpolations, which include every key that they refer to."""
    if re.search(r"\$\{[^{}]*\{", text):
        return frozenset({ANYTHING})
    inside = re.findall(r"\$\{([^{}]*)\}", text)
    return frozenset(re.findall(r"\w+", " ".join(inside)))


def may_be_meant(path: Sequence[str], names: frozenset[str]) -> bool:
    """Whether any of these names may refer to a key, to a group that holds it, or into it."""
    return ANYTHING in names or not names.isdisjoint(path)
