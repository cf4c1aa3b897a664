"""Guarantees about a user's module and data that a run cannot enforce by itself."""

from collections.abc import Iterable, Mapping
from typing import Any

ADDITIVE = "additive loss"
KEYED_ITEMS = "keyed items"
SEPARATE_ITEMS = "separate items"
KEYED_DRAWS = "keyed draws"
FIXED_BATCHNORM = "fixed batchnorm"
WHOLE_CHECKPOINT = "whole checkpoint"
SEEDS_APPLY = "seeds apply"
FIXED_RATES = "fixed rates"

#: Every guarantee, with the consequence if it does not hold.
GUARANTEES = {
    ADDITIVE: "Unless the loss is a mean over examples, each layout has a different gradient.",
    KEYED_ITEMS: "A data set with generators of its own gives no two runs the same examples.",
    SEPARATE_ITEMS: "An example that depends on its neighbours depends on the micro-batch.",
    KEYED_DRAWS: "Random draws of a step outside dropout layers depend on the micro-batch.",
    FIXED_BATCHNORM: "BatchNorm normalises micro-batches unless bn_span is a number.",
    FIXED_RATES: "Rates made from the number of ranks differ from layout to layout.",
    WHOLE_CHECKPOINT: "State that no checkpoint contains is lost when a run resumes.",
    SEEDS_APPLY: "A project that seeds generators itself starts with the same weights every time.",
}
#: Guarantees without which layouts give different results.
OF_LAYOUTS = (ADDITIVE, KEYED_ITEMS, SEPARATE_ITEMS, KEYED_DRAWS, FIXED_BATCHNORM, FIXED_RATES)
#: Where any of these does not hold, the micro-batch is part of what is trained.
OF_MICRO_BATCHES = (ADDITIVE, SEPARATE_ITEMS, FIXED_RATES)


def held(found: Mapping[str, Any], *, has_batchnorm: bool, bn_span: int | str | None) -> list[str]:
    """The guarantees that were found to hold; any that could not be determined is left out.

    Args:
        found: the findings about the user's project, by name.
        has_batchnorm: whether its module has layers of BatchNorm.
        bn_span: as in the config.
    """
    holds = {name for name, finding in found.items() if finding["holds"]}
    if not has_batchnorm or isinstance(bn_span, int):
        holds.add(FIXED_BATCHNORM)
    return [name for name in GUARANTEES if name in holds]


def missing(holding: Iterable[str]) -> list[str]:
    """The guarantees that are not among these."""
    return [name for name in GUARANTEES if name not in {*holding}]
