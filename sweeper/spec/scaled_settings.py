"""What a run's rules make of settings beside the rate: of its optimizer, and of its average."""

from collections.abc import Mapping
from typing import Any

from sweeper.spec.config import Facts, RunConfig, is_ours
from sweeper.spec.lr_rules import Mappings, Scaling


def map_settings(config: RunConfig, at: Scaling, peak_lr: float) -> Mappings:
    """What the rules make of the optimizer's settings.

    With `wd_rule=timescale` the decay is multiplied by ``batch_ratio * base_lr / peak_lr``: weights
    forget over ``batch / (lr * weight_decay)`` examples, the same number at every batch.

    Source:
        Wang & Aitchison 2024, arXiv:2405.13698.
    """
    found = dict(config.lr_rule.map_settings(at))
    if config.wd_rule == "timescale":
        factor = at.batch_ratio * at.base_lr / peak_lr
        found["weight_decay"] = lambda decay: decay * factor
    return found


def apply_mappings(mappings: Mappings, settings: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The values at this batch of the settings of an optimizer, or of a group, that have a mapping.

    ValueError if it lacks one of them.
    """
    check_settings([name for name in mappings if settings.get(name) is None], owner)
    return {name: of(settings[name]) for name, of in mappings.items()}


def check_settings(unfit: list[str], owner: str) -> None:
    """ValueError if there are settings that a rule cannot set in an optimizer's groups."""
    if unfit:
        msg = (
            f"the run's rules set {unfit[0]}, so all groups of an optimizer must have it, and "
            "nothing else may change it, as OneCycleLR does with cycle_momentum=True; got "
            f"{owner}. Choose another optimizer, scheduler or rule."
        )
        raise ValueError(msg)


def scaled_settings(
    config: RunConfig, facts: Facts, mappings: Mappings, batch_ratio: float
) -> dict[str, Any]:
    """Those of the optimizer's first group and the average's decay, as known before the run.

    With `ema_rule=scaled` the decay is ``ema_decay**batch_ratio`` (Busbridge et al. 2023,
    arXiv:2307.13813). ValueError if the rules set what the optimizer lacks or the module changes.
    """
    groups, owner = [config.optimizer.settings], f"optimizer={config.optimizer.name}"
    if config.keeps_own_optimizer:
        groups, owner = facts.own_settings or [{}], config.module.name
    target = config.optimizer.target
    is_library = is_ours(target) or target.startswith("torch.optim.")
    if is_library or facts.own_settings or mappings.keys() <= groups[0].keys():
        groups = [{**group, **apply_mappings(mappings, group, owner)} for group in groups]
    else:  # known to the worker only
        groups = [{}]
    decay = config.ema_decay and config.ema_decay ** (batch_ratio if config.ema_rule else 1)
    return {**groups[0], "ema_decay": decay}
