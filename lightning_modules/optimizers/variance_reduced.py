"""VR-SGD, VR-LARS, VR-LAMB: plain optimizers whose gradients `WeighGradients` weights first.

Settings that all share: `floor`, the least weight of a gradient (the paper's gamma), which the
callback reads from the groups; and `gradient_span`, the examples of each gradient that is compared,
to which planning sets the micro-batch. The other settings are those of the plain optimizer.

Source:
    Jiang et al. 2023, arXiv:2309.13681, algorithm 1 and section 4.2. VR-LAMB's average ratio has
    Adam's bias correction.
"""

from collections.abc import Sequence
from typing import Any

from torch.optim import SGD, Optimizer

from lightning_modules.optimizers import from_timm

Groups = Sequence[dict[str, Any]]


def vr_sgd(parameters: Groups, *, floor: float, gradient_span: int, **settings: Any) -> Optimizer:
    """SGD on weighted gradients; the weight decay is added afterwards, unweighted."""
    del gradient_span
    return SGD(_set_weights(parameters, floor), **settings)


def vr_lars(parameters: Groups, *, floor: float, gradient_span: int, **settings: Any) -> Optimizer:
    """LARS on weighted gradients."""
    del gradient_span
    plain = {"nesterov": False, "eps": 0.0, "trust_clip": False}
    return from_timm.lars(_set_weights(parameters, floor), **plain, **settings)


def vr_lamb(
    parameters: Groups, *, floor: float, gradient_span: int, betas: Sequence[float], **settings: Any
) -> Optimizer:
    """LAMB on gradients weighted by an average of their ratios; the third beta is its decay."""
    del gradient_span
    *moments, ratio_decay = betas
    plain = {"bias_correction": True, "max_grad_norm": None, "trust_clip": False}
    groups = _set_weights(parameters, floor, ratio_decay)
    return from_timm.lamb(groups, betas=moments, **plain, **settings)


def _set_weights(
    parameters: Groups, floor: float, ratio_decay: float = 0.0
) -> list[dict[str, Any]]:
    return [{**group, "floor": floor, "ratio_decay": ratio_decay} for group in parameters]
