"""Perturbations: gradients at weights that were moved first. Their settings."""

from typing import Annotated, Literal

from pydantic import Field

from sweeper.spec.values import Count, Positive, Settings


class NoPerturbation(Settings):
    """Descend on the loss as it is."""

    name: Literal["none"]


class SAM(Settings):
    """The gradient where the loss is highest within `rho`, for each `gradient_span` examples."""

    name: Literal["sam"]
    rho: Positive
    gradient_span: Count


Perturbation = Annotated[NoPerturbation | SAM, Field(discriminator="name")]
