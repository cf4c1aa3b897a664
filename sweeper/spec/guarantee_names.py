"""Guarantees about a user's module and data that a run cannot enforce by itself."""

from collections.abc import Iterable, Mapping
from typing import Any

SAME = "same on every layout"
RESUMES = "same after a resume"
FIXED_BATCHNORM = "fixed batchnorm"
SEEDS_APPLY = "seeds apply"

#: Every guarantee, with the consequence if it does not hold.
GUARANTEES = {
    SAME: "Unless a step is the same in all micro-batches and on all ranks, each layout trains "
    "otherwise.",
    FIXED_BATCHNORM: "BatchNorm normalises micro-batches unless bn_span is a number.",
    RESUMES: "State that no checkpoint contains is lost when a run resumes.",
    SEEDS_APPLY: "A project that seeds generators itself starts with the same weights every time.",
}


def held(found: Mapping[str, Any], *, has_batchnorm: bool, bn_span: int | str | None) -> list[str]:
    """The guarantees that were found to hold, with what was compared; any other is left out.

    Args:
        found: the findings about the user's project, by name.
        has_batchnorm: whether its module has layers of BatchNorm.
        bn_span: as in the config.
    """
    over = {name: finding.get("over") for name, finding in found.items() if finding["holds"]}
    if not has_batchnorm or isinstance(bn_span, int):
        over[FIXED_BATCHNORM] = None
    return [f"{name} ({over[name]})" if over[name] else name for name in GUARANTEES if name in over]


def missing(holding: Iterable[str]) -> list[str]:
    """The guarantees that are not among these."""
    names = {name.partition(" (")[0] for name in holding}
    return [name for name in GUARANTEES if name not in names]
