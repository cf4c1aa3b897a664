"""What may hold for a user's module and data beyond what a run secures by itself."""

from collections.abc import Iterable, Mapping
from typing import Any

ADDITIVE = "additive loss"
KEYED_ITEMS = "keyed items"
SEPARATE_ITEMS = "separate items"
KEYED_DRAWS = "keyed draws"
FIXED_BATCHNORM = "fixed batchnorm"
WHOLE_CHECKPOINT = "whole checkpoint"

#: Every guarantee, with what does not hold without it.
GUARANTEES = {
    ADDITIVE: "its loss is no mean over examples, so each layout follows another gradient",
    KEYED_ITEMS: "its data set draws from generators of its own, so no two runs see the same",
    SEPARATE_ITEMS: "an example depends on its neighbours in the micro-batch",
    KEYED_DRAWS: "its draws in a training step belong to the micro-batch, not to the examples",
    FIXED_BATCHNORM: "BatchNorm normalises micro-batches; set bn_span to a number",
    WHOLE_CHECKPOINT: "it keeps something outside of its checkpoint, which a resumed run lacks",
}
#: Those without which layouts differ.
OF_LAYOUTS = (ADDITIVE, KEYED_ITEMS, SEPARATE_ITEMS, KEYED_DRAWS, FIXED_BATCHNORM)


def held(facts: Mapping[str, Any], *, bn_span: int | str | None) -> list[str]:
    """The guarantees that were found to hold; what was not found out is not among them.

    Args:
        facts: of the user's project: `found` and `has_batchnorm`.
        bn_span: as in the config.
    """
    holds = {name for name, finding in facts["found"].items() if finding["holds"]}
    if not facts["has_batchnorm"] or isinstance(bn_span, int):
        holds.add(FIXED_BATCHNORM)
    return [name for name in GUARANTEES if name in holds]


def missing(holding: Iterable[str]) -> list[str]:
    """The guarantees that are not among these."""
    return [name for name in GUARANTEES if name not in {*holding}]
