"""A noise scale that an earlier run measured, put into the configs that ask for it."""

from sweeper.spec.config import RunConfig
from sweeper.spec.lr_rules import OwnRule, Saturating, Surge
from sweeper.store.ledger import Ledger


def with_measured_noise(config: RunConfig, ledger: Ledger) -> RunConfig:
    """The config with the number in place of ``lr_rule.noise_scale=measured``.

    The number belongs to the run's identity; where it comes from does not.

    Args:
        config: of a run.
        ledger: of the runs; `lr_rule.measured_in` is one of them.

    Raises:
        ValueError: if that run is not named, not there or measured nothing.
    """
    rule = config.lr_rule
    is_known = isinstance(rule, Saturating | Surge | OwnRule)
    if not is_known or getattr(rule, "noise_scale", None) != "measured":
        return config
    named = rule.measured_in
    row = ledger.rows({str(named)}, ["noise_scale"]).get(str(named)) if named else None
    if row is None or row["noise_scale"] is None:
        msg = (
            "lr_rule.noise_scale=measured must be with lr_rule.measured_in, a run of "
            f"{ledger.results} that has ended and measured its noise; got lr_rule.measured_in="
            f"{named}. Train one with noise_span=... and write +lr_rule.measured_in=RUN_ID."
        )
        raise ValueError(msg)
    measured = {**config.resolved["lr_rule"], "noise_scale": row["noise_scale"]}
    return config.replaced(lr_rule=measured)
